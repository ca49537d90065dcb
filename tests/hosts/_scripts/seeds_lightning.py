"""Trainings that write down which random numbers their ranks and workers draw.

Argument: a JSON list with a set of options for each training of this process.
"""

# ruff: noqa: NPY002 - the global generators are what this is about

import os
import random
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
import toys
from draws import NUM_RANKS, RANK, Draws, mask, numbers, train_each
from torch import Tensor, nn
from torch.utils.data import DataLoader

DEFAULTS: dict[str, Any] = {
    "name": "run",
    "seed": 3,
    "how": "everything",
    "seeds": {},
    "num_workers": 0,
    "num_epochs": 2,
    "is_persistent": False,
    "own_start": False,
    "late": False,
    "watched": True,
    "saves_every": None,
    "resumes": None,
}


class Drawing(pl.LightningModule):
    """Dropout over a batch norm without sync."""

    def __init__(self, *, is_late: bool) -> None:
        super().__init__()
        self.network: Any = None
        self.drawn: list[Any] = []
        self.first: list[float] = []
        if not is_late:
            self._make()

    def configure_model(self) -> None:
        if self.network is None:
            self._make()

    def _make(self) -> None:
        self.network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
        if not self.first:
            self.first = self.network[0].weight.flatten().tolist()[:4]

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        output = self.network(numbers(batch))
        self.drawn.append([self.current_epoch, batch.tolist(), mask()])
        return output.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def same_numbers(worker: int) -> None:
    """A user's own start of a worker, which knows neither rank nor epoch."""
    np.random.seed(worker // 2)


def seed(options: dict[str, Any]) -> None:
    """Seeds as the script of a user does."""
    number = options["seed"]
    os.environ.pop("PL_GLOBAL_SEED", None)
    if options["how"] == "everything":
        pl.seed_everything(number, verbose=False)
    elif options["how"] == "by_rank":
        random.seed(number + RANK)
        np.random.seed(number + RANK)
        torch.manual_seed(number + RANK)
    else:
        random.seed(0)
        np.random.seed(0)
        # As in a new process, where it has more than 32 bits, but the same each time.
        torch.manual_seed((1 << 40) + RANK)


def train(options: dict[str, Any]) -> None:
    """Trains once."""
    seed(options)
    model = Drawing(is_late=options["late"])
    watch = toys.SLACallback(
        toys.contract(seeds=options["seeds"], checkpoint={"every_steps": options["saves_every"]})
    )
    trainer = toys.trainer(
        watch if options["watched"] else None,
        devices=NUM_RANKS,
        strategy="ddp" if NUM_RANKS > 1 else "auto",
        max_epochs=options["num_epochs"],
    )
    loader = DataLoader(
        Draws(),
        batch_size=2,
        shuffle=True,
        num_workers=options["num_workers"],
        persistent_workers=options["is_persistent"],
        worker_init_fn=same_numbers if options["own_start"] else None,
    )
    trainer.fit(model, loader, ckpt_path=options["resumes"])
    toys.tell(
        options["name"],
        drawn=model.drawn,
        first=model.first,
        folder=str(watch.run_folder),
        seed_left=os.environ.get("PL_GLOBAL_SEED"),
        own_start_left=loader.worker_init_fn is same_numbers,
    )


if __name__ == "__main__":
    train_each(train, DEFAULTS)
