"""What the scripts about random numbers share: a data set that draws, and a job of several
trainings."""

# ruff: noqa: NPY002 - the global generators are what this is about

import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

RANK, NUM_RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Draws(Dataset[Tensor]):
    """A number of each generator, drawn where the item is made, who made it, and which it is."""

    def __len__(self) -> int:
        return 4 * NUM_RANKS

    def __getitem__(self, index: int) -> Tensor:
        info = torch.utils.data.get_worker_info()
        worker = -1 if info is None else info.id
        return torch.tensor(
            [worker, torch.rand(()).item(), random.random(), np.random.rand(), index],
            dtype=torch.float64,
        )


def numbers(batch: Tensor) -> Tensor:
    """What of a batch was drawn."""
    return batch[:, 1:4].float()


def mask() -> list[float]:
    """A dropout mask, drawn by this rank."""
    return nn.functional.dropout(torch.ones(16), 0.5).tolist()


def train_each(train: Callable[[dict[str, Any]], None], defaults: dict[str, Any]) -> None:
    """Trains with each set of options that the command line names as a JSON list."""
    for given in json.loads(sys.argv[1]):
        train(defaults | given)
