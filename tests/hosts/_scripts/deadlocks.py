"""Trainings in which the ranks wait for each other for ever; the name of one is given."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
import toys
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

RANK = int(os.environ["RANK"])
NUM_RANKS = int(os.environ["WORLD_SIZE"])
NUM_BATCHES = 5 if RANK == 0 else 8


class Stream(IterableDataset[Tensor]):
    """Batches without a length: five on rank 0, eight on the others."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(NUM_BATCHES):
            inputs = torch.full((4,), float(number))
            yield inputs, inputs.sum().view(1)


class OnRankZero(pl.Callback):
    """Does something in a hook, on rank 0 only."""

    def __init__(self, step: int, act: Any) -> None:
        self.step, self.act = step, act

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step - 1 == self.step and trainer.is_global_zero:
            self.act(trainer)


def lonely_all_reduce(trainer: pl.Trainer) -> None:
    """A collective that the others never enter."""
    dist.all_reduce(torch.zeros(3))


def matched_broadcast(trainer: pl.Trainer) -> None:
    """One that the framework's next broadcast takes for its own, so that it freezes later."""
    dist.broadcast(torch.zeros(1), src=0)


def save_here(trainer: pl.Trainer) -> None:
    """A save that only one rank enters."""
    trainer.save_checkpoint("lonely.ckpt")


def uneven() -> DataLoader[Any]:
    """Loaders whose lengths differ."""
    return toys.batches(NUM_BATCHES)


def run(callbacks: list[pl.Callback], loader: DataLoader[Any]) -> None:
    watch = toys.SLACallback(toys.contract(limit_s=1.5, monitor={"grace_s": 0.5}))
    trainer = toys.trainer(
        watch,
        *callbacks,
        max_epochs=1,
        devices=NUM_RANKS,
        strategy="ddp",
        use_distributed_sampler=False,
        enable_checkpointing=True,
        default_root_dir=".",
    )
    trainer.fit(toys.Toy(), loader)


ACTS = {
    "matched": matched_broadcast,
    "all_reduce": lonely_all_reduce,
    "save": save_here,
}

if __name__ == "__main__":
    case = sys.argv[1]
    if case == "uneven":
        run([], uneven())
    elif case == "stream":
        run([], DataLoader(Stream(), batch_size=1))
    else:
        run([OnRankZero(20, ACTS[case])], toys.batches(100))
