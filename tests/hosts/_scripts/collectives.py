"""Two trainings of one process group, without and with the callback; counts collectives."""

from typing import Any

import lightning.pytorch as pl
import torch.distributed as dist
import toys
from lightning.pytorch.callbacks import ModelCheckpoint


def num_collectives() -> int:
    """Collectives that this rank has ever started in the default group."""
    return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()


class Counts(pl.Callback):
    """Counts between set-up and the end of ``fit``."""

    def __init__(self) -> None:
        self.in_training = self.in_all = 0

    def setup(self, *_: Any, **__: Any) -> None:
        self.in_all = -num_collectives()

    def on_train_start(self, *_: Any) -> None:
        self.in_training = -num_collectives()

    def on_train_end(self, *_: Any) -> None:
        self.in_training += num_collectives()

    def teardown(self, *_: Any, **__: Any) -> None:
        self.in_all += num_collectives()


def main() -> None:
    for name in ("without", "with"):
        counts = Counts()
        watch = toys.SLACallback(toys.contract()) if name == "with" else None
        trainer = toys.trainer(
            watch,
            counts,
            ModelCheckpoint(f"checkpoints-{name}", every_n_train_steps=7, save_top_k=-1),
            devices=2,
            strategy="ddp",
            max_epochs=2,
            accumulate_grad_batches=2,
            val_check_interval=20,
            enable_checkpointing=True,
        )
        trainer.fit(toys.Toy(0.0), toys.batches(40, num_ranks=2), toys.batches(2))
        toys.tell(name, training=counts.in_training, all=counts.in_all)


if __name__ == "__main__":
    main()
