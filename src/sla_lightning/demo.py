"""The training job of ``sla demo``: an ordinary Lightning script with one callback more.

Run by ``sla demo`` as ``python -m sla_lightning.demo``; runs by itself as well. It knows
nothing of faults: those come from outside, through ``SLA_INJECT``.
"""

import warnings
from collections.abc import Sequence

import lightning as L
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch.distributed import is_torchelastic_launched
from torch.utils.data import DataLoader

from sla_lightning import SLACallback
from sla_lightning._demo_module import CharacterModule
from slav1.demo import (
    BATCH_SIZE,
    LENGTH,
    SEED,
    JobOptions,
    Windows,
    contract_for,
    options_of,
    source_text,
)


def train(options: JobOptions) -> None:
    """Trains on this machine's processor until the last step, or the contract, ends it.

    Args:
        options: What is asked for; the first process starts the others.
    """
    L.seed_everything(SEED, verbose=False)
    data = Windows(source_text(), length=LENGTH)
    contract = contract_for(saves_by_itself=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=options.num_ranks,
        strategy="ddp" if options.num_ranks > 1 else "auto",
        # Variables of a cluster must not make it another job, but an agent may start it.
        plugins=[] if is_torchelastic_launched() else [LightningEnvironment()],
        max_steps=options.num_steps,
        callbacks=[SLACallback(contract=contract, run_dir=options.run_dir)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        CharacterModule(), DataLoader(data, batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and trains.

    Args:
        arguments: Words of the command line; those of this process if None.
    """
    options = options_of("python -m sla_lightning.demo", arguments)
    # Text that lies in memory needs no worker processes to load it.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    train(options)


if __name__ == "__main__":
    main()
