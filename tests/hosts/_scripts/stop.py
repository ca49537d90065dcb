"""A training that the contract stops, with every way of saving switched on."""

import os
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import toys
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from sla_lightning import JobEndedError

NUM_RANKS = int(os.environ["WORLD_SIZE"])
FOLDER = Path("checkpoints")


class Logger(CSVLogger):
    """Tells how it is ended."""

    def finalize(self, status: str) -> None:
        super().finalize(status)
        toys.tell("finalized", status=status)


class Watches(pl.Callback):
    """Counts validations, saves at the end by itself, as users do."""

    def __init__(self) -> None:
        self.num_validations = 0

    def on_validation_start(self, *_: Any) -> None:
        self.num_validations += 1

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        trainer.save_checkpoint(FOLDER / "by-hand.ckpt")

    def on_fit_end(self, trainer: pl.Trainer, *_: Any) -> None:
        trainer.save_checkpoint(FOLDER / "by-hand-at-the-end.ckpt")


def steps_on_disk() -> dict[str, int]:
    """Step that each checkpoint holds, by name."""
    return {
        path.name: torch.load(path, weights_only=True)["global_step"]
        for path in FOLDER.glob("*.ckpt")
    }


def main() -> None:
    num_micro, action = int(sys.argv[1]), sys.argv[2]
    watch, counts = toys.SLACallback(toys.contract(non_finite={"action": action})), Watches()
    saver = ModelCheckpoint(
        FOLDER, every_n_train_steps=40, save_top_k=-1, save_last=True, save_on_exception=True
    )
    trainer = toys.trainer(
        watch,
        saver,
        counts,
        devices=NUM_RANKS,
        strategy="ddp" if NUM_RANKS > 1 else "auto",
        accumulate_grad_batches=num_micro,
        max_epochs=50,
        min_steps=2000,
        min_epochs=3,
        val_check_interval=390,
        enable_checkpointing=True,
        logger=Logger("logs"),
        log_every_n_steps=5,
    )
    model = toys.Toy(step_s=0.02 / num_micro)
    try:
        trainer.fit(model, toys.batches(400, num_ranks=NUM_RANKS), toys.batches(2))
    except JobEndedError as error:
        facts = {"stopped_at": watch.stopped_at, "steps_on_disk": steps_on_disk()}
        toys.tell("ended", error=str(error), num_validations=counts.num_validations, **facts)
        raise
    toys.tell(
        "fit",
        stopped_at=watch.stopped_at,
        global_step=trainer.global_step,
        num_validations=counts.num_validations,
        steps_on_disk=steps_on_disk(),
        status=trainer.state.status.value,
    )
    trainer.validate(model, toys.batches(2), verbose=False)
    trainer.save_checkpoint(FOLDER / "afterwards.ckpt")
    toys.tell("after", num_validations=counts.num_validations, steps_on_disk=steps_on_disk())


if __name__ == "__main__":
    main()
