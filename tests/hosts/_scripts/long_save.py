"""Rank 0 never comes back from a save, which may take two seconds."""

import time
from typing import Any

import lightning.pytorch as pl
import toys


class Saves(pl.Callback):
    """Saves at step 20."""

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == 20:
            trainer.save_checkpoint("never.ckpt")

    def on_save_checkpoint(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.is_global_zero:
            toys.tell("saves")
            time.sleep(100)


def main() -> None:
    hang = {"checkpoint_limit_s": 2.0}
    trainer = toys.trainer(
        toys.SLACallback(toys.contract(limit_s=1.5, hang=hang, monitor={"grace_s": 0.5})),
        Saves(),
        devices=2,
        strategy="ddp",
        max_steps=100,
    )
    trainer.fit(toys.Toy(), toys.batches(100, num_ranks=2))


if __name__ == "__main__":
    main()
