"""Memory that is kept: by step, by save, by evaluation; and given back at an epoch's end."""

import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import toys

CASE = sys.argv[1]
FOLDER = Path(sys.argv[2])
FLOATS_IN_MIB = 1 << 18
NUM_STEPS = {"step": 400, "epoch": 700, "save": 900, "reset": 500, "never_reset": 500}[CASE]
EPOCH_STEPS = {"step": 400, "epoch": 100, "save": 900, "reset": 25, "never_reset": 25}[CASE]


class Keeps(toys.Toy):
    """Keeps its outputs with their graph, or what its validations predict."""

    def __init__(self) -> None:
        super().__init__(step_s=0.01)
        self.kept: list[torch.Tensor] = []
        self.predicted: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(self.step_s)
        loss = self.loss(batch)
        if CASE in ("step", "epoch"):
            # A mebibyte of output whose graph is kept with it.
            self.kept.append(self.linear(batch[0]).mean().expand(FLOATS_IN_MIB).clone())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.predicted.append(torch.ones(4 * FLOATS_IN_MIB))

    def on_train_epoch_end(self) -> None:
        if CASE == "epoch":
            self.kept.clear()
        if CASE == "reset":
            self.predicted.clear()


class Saves(pl.Callback):
    """Saves every 50 steps and keeps 20 MiB each time."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if CASE == "save" and trainer.global_step % 50 == 0:
            trainer.save_checkpoint(FOLDER / f"{trainer.global_step}.ckpt")
            self.kept.append(torch.ones(20 * FLOATS_IN_MIB))


def main() -> None:
    trainer = toys.trainer(
        toys.SLACallback(toys.contract(limit_s=30.0)),
        Saves(),
        max_steps=NUM_STEPS,
        limit_val_batches=2 if "reset" in CASE else 0,
    )
    trainer.fit(Keeps(), toys.batches(EPOCH_STEPS), toys.batches(2))
    toys.tell("fit", global_step=trainer.global_step)


if __name__ == "__main__":
    main()
