"""Three steps with the settings that a file of Accelerate's holds; by rank if several are given."""

import os
import sys
import warnings

import torch
from torch import nn

from sla_accelerate import SLAAccelerator

warnings.filterwarnings("ignore")


def main() -> None:
    """Trains, and says what was in force."""
    files = sys.argv[1:]
    if files:
        os.environ["SLA_CONFIG_FILE"] = files[int(os.environ["RANK"]) % len(files)]
    accelerator = SLAAccelerator()
    model = nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        accelerator.backward(model(torch.ones(2, 2)).mean())
        optimizer.step()
        optimizer.zero_grad()
    print(f"in force: rank {accelerator.process_index}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
