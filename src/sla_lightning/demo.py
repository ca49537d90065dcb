"""The training job of ``sla demo``: an ordinary Lightning script with one callback more.

Run by ``sla demo`` as ``python -m sla_lightning.demo``; runs by itself as well. It knows
nothing of faults: those come from outside, through ``SLA_INJECT``.
"""

import argparse
import warnings
from collections.abc import Sequence

import lightning as L
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch.distributed import is_torchelastic_launched
from torch.utils.data import DataLoader

from sla_lightning import SLACallback
from sla_lightning._demo_model import CharacterModel
from sla_lightning._demo_text import ALPHABET, Windows, source_text
from slav1.contract import Contract

LENGTH = 32
"""Characters the model looks back on."""

BATCH_SIZE = 16
"""Pieces of text in a batch of one rank."""

SAVE_EVERY = 20
"""Steps from one checkpoint to the next."""

SEED = 7
"""Makes the weights and the order of the data the same in every run."""

_SHORT_MEMORY = {
    "mode": "enforce",
    "action": "stop",
    "arl0": 1e5,
    "block_steps": 20,
    "warmup_steps": 100,
    "suspect_after_steps": 60,
}
"""A leak shall be found in some hundred steps, so less evidence must do."""


def demo_contract() -> Contract:
    """The contract of the demo: L1, but a bad loss is acted on as well, there is always a
    fresh checkpoint to go back to, and who watches a hang need not wait long."""
    return Contract.level("L1").override(
        loss_variance={"mode": "enforce", "action": "rollback"},
        non_finite={"action": "rollback"},
        hang={"limit_s": 5.0, "action": "restart"},
        liveness={"action": "restart"},
        memory_drift=_SHORT_MEMORY,
        checkpoint={"every_steps": SAVE_EVERY},
        seeds={"mode": "set"},
        monitor={"grace_s": 2.0},
    )


def train(*, num_ranks: int, num_steps: int, run_dir: str) -> None:
    """Trains on this machine's processor until the last step, or the contract, ends it.

    Args:
        num_ranks: Processes to train with; the first starts the others.
        num_steps: Optimizer steps to make.
        run_dir: Where the contract keeps its ledger.
    """
    L.seed_everything(SEED, verbose=False)
    data = Windows(source_text(), length=LENGTH)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=num_ranks,
        strategy="ddp" if num_ranks > 1 else "auto",
        # Variables of a cluster must not make it another job, but an agent may start it.
        plugins=[] if is_torchelastic_launched() else [LightningEnvironment()],
        max_steps=num_steps,
        callbacks=[SLACallback(contract=demo_contract(), run_dir=run_dir)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        CharacterModel(num_characters=len(ALPHABET), length=LENGTH),
        DataLoader(data, batch_size=BATCH_SIZE, shuffle=True, drop_last=True),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and trains.

    Args:
        arguments: Words of the command line; those of this process if None.
    """
    parser = argparse.ArgumentParser(
        prog="python -m sla_lightning.demo", description="The training job of sla demo."
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes to train with")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps to make")
    parser.add_argument("--run-dir", default="sla_runs", help="folder for the ledger")
    options = parser.parse_args(arguments)
    # Text that lies in memory needs no worker processes to load it.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    train(num_ranks=options.ranks, num_steps=options.steps, run_dir=options.run_dir)


if __name__ == "__main__":
    main()
