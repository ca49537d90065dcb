"""Epochs whose first batch takes long, since workers start anew, and whose end takes longer."""

import time
from typing import Any

import torch
import toys
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

FIRST_S, END_S, NUM_EPOCHS, NUM_BATCHES = 1.5, 3.0, 3, 40


class Cold(Dataset[tuple[Tensor, Tensor]]):
    """Each worker reads something large before its first item."""

    is_cold = True

    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.is_cold:
            self.is_cold = False
            time.sleep(FIRST_S)
        return torch.ones(4), torch.ones(1)


class Slow(toys.Toy):
    """Does something of its own at the end of each epoch."""

    def on_train_epoch_end(self) -> None:
        time.sleep(END_S)


def main() -> None:
    callback = toys.SLACallback(toys.contract(limit_s=1.2, monitor={"grace_s": 0.5}))
    trainer = toys.trainer(callback, max_epochs=NUM_EPOCHS)
    loader: Any = DataLoader(Cold(), num_workers=1)
    trainer.fit(Slow(), loader)
    toys.tell("trained", num_steps=trainer.global_step)


if __name__ == "__main__":
    main()
