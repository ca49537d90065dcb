"""A training script that knows nothing of any contract; its first argument says what to make.

It says for each accelerator what it is, and what came of its training.
"""

import json
import sys
import warnings
from typing import Any

import accelerate
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Own(Accelerator):
    """The user's own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.own = "own"


MAKERS = {"plain": Accelerator, "named": accelerate.Accelerator, "own": Own}


def main() -> None:
    """Trains ten steps."""
    accelerator = MAKERS[sys.argv[1]]()
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    items = TensorDataset(torch.ones(20 * accelerator.num_processes, 2))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(items, batch_size=2)
    )
    num_steps = 0
    for (batch,) in loader:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        num_steps += 1
    accelerator.end_training()
    said = {"tell": "made", "type": type(accelerator).__name__, "num_steps": num_steps}
    # One write, so that the lines of two ranks do not mix.
    sys.stdout.write(json.dumps({**said, "ranks": accelerator.num_processes}) + "\n")


if __name__ == "__main__":
    main()
