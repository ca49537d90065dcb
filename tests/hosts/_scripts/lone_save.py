"""Rank 0 alone saves a sharded model, under an "am I the main process" test."""

import os
from typing import Any

import families
import lightning.pytorch as pl
import toys

NUM_RANKS = int(os.environ["WORLD_SIZE"])


class Alone(pl.Callback):
    """Saves on rank 0 only."""

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == 6 and trainer.is_global_zero:
            trainer.save_checkpoint("lone")


def main() -> None:
    trainer = toys.trainer(
        toys.SLACallback(toys.contract(limit_s=3.0)),
        Alone(),
        devices=NUM_RANKS,
        strategy=families.strategy("fsdp2"),
        max_steps=16,
    )
    trainer.fit(families.Family(), families.loader(NUM_RANKS))


if __name__ == "__main__":
    main()
