"""Two ranks that a launcher of the host forks; the cell itself makes no accelerator."""

import json
import sys
import warnings

import torch
from accelerate import debug_launcher, notebook_launcher
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sla_accelerate import SLAAccelerator

warnings.filterwarnings("ignore")


def train(num_steps: int) -> None:
    """What the cell hands over."""
    accelerator = SLAAccelerator(cpu=True)
    model = nn.Linear(2, 1)
    items = TensorDataset(torch.ones(num_steps * accelerator.num_processes, 2))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(items)
    )
    for (batch,) in loader:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    said = {"tell": "trained", "rank": accelerator.process_index}
    said |= {"ranks": accelerator.num_processes, "last_step": accelerator.sla_last_step}
    accelerator.end_training()
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    launcher, port = sys.argv[1:]
    if launcher == "debug":
        debug_launcher(train, (10,), num_processes=2)
    else:
        notebook_launcher(train, (10,), num_processes=2, use_port=port)
