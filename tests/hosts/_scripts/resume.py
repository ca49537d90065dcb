"""A training that ends early and is resumed, beside the same one without interruption."""

import os
import sys
from typing import Any

import families
import lightning.pytorch as pl
import toys
from lightning.pytorch.callbacks import ModelCheckpoint

NUM_RANKS = int(os.environ["WORLD_SIZE"])


def train(num_steps: int, *, seed: int, ckpt_path: str | None = None) -> tuple[Any, Any]:
    """Trains with a strategy of ours and nothing else."""
    pl.seed_everything(seed, verbose=False)
    name = sys.argv[1]
    model = families.Family()
    trainer = toys.trainer(
        None,
        ModelCheckpoint("saved", every_n_train_steps=4, save_top_k=-1),
        devices=NUM_RANKS,
        strategy=name if name.startswith("sla_") else families.strategy(name),
        max_steps=num_steps,
        enable_checkpointing=True,
    )
    # Lightning seeds its own sampler by this, and it has to be that of the saved training.
    os.environ["PL_GLOBAL_SEED"] = "3"
    trainer.fit(model, families.loader(NUM_RANKS), ckpt_path=ckpt_path)
    return model.seen, trainer.ckpt_path


def main() -> None:
    train(14, seed=3)
    resumed, path = train(20, seed=4, ckpt_path="last_good")
    # Another run directory is another run.
    os.environ["SLA_RUN_DIR"] += "-unbroken"
    unbroken, _ = train(20, seed=3)
    toys.tell("runs", resumed=resumed, unbroken=unbroken, went_on_from=str(path))


if __name__ == "__main__":
    main()
