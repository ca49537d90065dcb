"""A training that is over at once, in an evaluation, while workers of two kinds are at work."""

import os
import sys
from typing import Any

import lightning.pytorch as pl
import torch
import toys
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Items(Dataset[Any]):
    """Numbers to train with; or items of which two don't fit into a pipe."""

    def __init__(self, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return "x" * self.size_bytes if self.size_bytes else torch.ones(4)


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """One to train with, whose workers come from a fork server, and one to evaluate with."""
    served = DataLoader(
        Items(), num_workers=1, multiprocessing_context="forkserver", persistent_workers=True
    )
    return served, DataLoader(Items(1 << 17), num_workers=1, multiprocessing_context="fork")


class Model(pl.LightningModule):
    """Ends the process in its first evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.linear(batch).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        os._exit(70)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loop(mode: str) -> None:
    """The same, written by hand."""
    from sla_accelerate import SLAAccelerator

    contract = toys.contract(seeds={"mode": mode})
    accelerator = SLAAccelerator(contract=contract, cpu=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, served, forked = accelerator.prepare(model, optimizer, *loaders())
    for batch in served:
        accelerator.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    for _ in forked:
        os._exit(70)


def main() -> None:
    """Trains with one of the hosts."""
    host, mode = sys.argv[1:]
    if host == "accelerate":
        loop(mode)
    callback = toys.SLACallback(toys.contract(seeds={"mode": mode}))
    toys.trainer(callback, max_epochs=1).fit(Model(), *loaders())


if __name__ == "__main__":
    main()
