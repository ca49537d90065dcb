"""A loop that goes on from the last good checkpoint, if there is one, and is killed once."""

import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sla_accelerate import SLAAccelerator
from slav1.contract import Contract

warnings.filterwarnings("ignore")
NUM_EPOCHS, SAVE_EVERY = 3, 10


def main() -> None:
    """Trains three epochs of 20 steps and saves every ten steps."""
    torch.manual_seed(0)
    contract = Contract.level("L1").override(monitor={"grace_s": 1.0})
    accelerator = SLAAccelerator(contract=contract, cpu=True)
    inputs = torch.randn(80, 4)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=2)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    if sys.argv[1] == "resumes":
        accelerator.load_state("last_good")
    for _ in accelerator.sla_epochs(NUM_EPOCHS):
        for batch, target in data:
            accelerator.backward(nn.functional.mse_loss(model(batch), target))
            optimizer.step()
            optimizer.zero_grad()
            if (accelerator.sla_last_step + 1) % SAVE_EVERY == 0:
                accelerator.save_state(f"checkpoints/step-{accelerator.sla_last_step}")
    print("made", accelerator.sla_last_step + 1, flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
