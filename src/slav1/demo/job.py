"""A training job of the demo, whichever host it is written for."""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from slav1.contract import Contract

LENGTH = 32
"""Characters the model looks back on."""

BATCH_SIZE = 16
"""Pieces of text in a batch of one rank."""

SAVE_EVERY = 20
"""Steps from one checkpoint to the next."""

SEED = 7
"""Makes the weights and the order of the data the same in every run."""

LEARNING_RATE = 3e-3
"""Of AdamW."""

_SHORT_MEMORY = {
    "mode": "enforce",
    "action": "stop",
    "arl0": 1e5,
    "block_steps": 20,
    "warmup_steps": 100,
    "suspect_after_steps": 60,
}
"""A leak shall be found in some hundred steps, so less evidence must do."""


class JobOptions(NamedTuple):
    """What a job is told on its command line."""

    num_ranks: int
    """Processes to train with."""

    num_steps: int
    """Optimizer steps to make."""

    run_dir: str
    """Where the contract keeps its ledger."""


def options_of(program: str, arguments: Sequence[str] | None) -> JobOptions:
    """Reads the command line of a job.

    Args:
        program: How it is called.
        arguments: Words of the command line; those of this process if None.
    """
    parser = argparse.ArgumentParser(prog=program, description="The training job of sla demo.")
    parser.add_argument("--ranks", type=int, default=2, help="processes to train with")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps to make")
    parser.add_argument("--run-dir", default="sla_runs", help="folder for the ledger")
    options = parser.parse_args(arguments)
    return JobOptions(options.ranks, options.steps, options.run_dir)


def contract_for(*, saves_by_itself: bool) -> Contract:
    """The contract of the demo: L1, but a bad loss is acted on as well, there is always a
    fresh checkpoint to go back to, and who watches a hang need not wait long.

    Args:
        saves_by_itself: Whether the contract makes the checkpoints, and not the script.
    """
    return Contract.level("L1").override(
        loss_variance={"mode": "enforce", "action": "rollback"},
        non_finite={"action": "rollback"},
        hang={"limit_s": 5.0, "action": "restart"},
        liveness={"action": "restart"},
        memory_drift=_SHORT_MEMORY,
        checkpoint={"every_steps": SAVE_EVERY if saves_by_itself else None},
        seeds={"mode": "set"},
        monitor={"grace_s": 2.0},
    )
