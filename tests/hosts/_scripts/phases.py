"""Long phases that are healthy, and then a step that hangs (by ``SLA_INJECT``).

Argument: seconds that the first step, two kinds of save and a validation take.
"""

import sys
import time
from typing import Any

import lightning.pytorch as pl
import torch
import toys

LONG_S = float(sys.argv[1])
SAVE_AT, WRITE_AT, VALIDATE_AT, NUM_STEPS = 20, 30, 40, 1000


class Large:
    """Takes long to be written."""

    def __getstate__(self) -> dict[str, Any]:
        time.sleep(LONG_S)
        return {}


class Slow(toys.Toy):
    """Compiles, as it were, in its first step, and validates at length."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 0:
            time.sleep(LONG_S)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        time.sleep(LONG_S)


class Saves(pl.Callback):
    """Rank 0 takes long to save, and to write a file of its own; the others wait for it."""

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == SAVE_AT:
            trainer.save_checkpoint("slow.ckpt")
            toys.tell("saved", time_ns=time.time_ns())
        if trainer.global_step == WRITE_AT and trainer.is_global_zero:
            torch.save(Large(), "large.pt")
            toys.tell("wrote")

    def on_save_checkpoint(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.is_global_zero:
            toys.tell("saves", time_ns=time.time_ns())
            time.sleep(LONG_S)


def main() -> None:
    trainer = toys.trainer(
        toys.SLACallback(toys.contract(limit_s=1.2, monitor={"grace_s": 0.5})),
        Saves(),
        devices=2,
        strategy="ddp",
        max_steps=NUM_STEPS,
        val_check_interval=VALIDATE_AT,
        limit_val_batches=1,
    )
    trainer.fit(Slow(), toys.batches(NUM_STEPS, num_ranks=2), toys.batches(2))


if __name__ == "__main__":
    main()
