"""Carrying decisions out in Accelerate: the user's own loop is ended, or told."""

from pathlib import Path
from typing import Literal, cast, get_args

from slav1.decision import Action

OnStop = Literal["raise", "flag"]
"""What a stop does: raise in the user's loop, or only turn ``sla_should_stop`` on."""


class TrainingStoppedError(Exception):
    """The contract stopped training: raised on every rank at the end of the same step.

    It comes out of ``optimizer.step()``, after the update. Not a ``RuntimeError``, so
    that a loop which survives running out of memory does not survive this by accident.

    Attributes:
        step: Optimizer step at whose end all ranks stopped, from 0.
        action: What was decided.
        run_folder: Folder whose ``ledger.jsonl`` says why.
    """

    def __init__(self, *, step: int, action: Action, run_folder: Path) -> None:
        super().__init__(
            f"The stability contract stopped training on all ranks at the end of step {step}; "
            f"{run_folder}/ledger.jsonl says why. Nothing was saved on the way out. To end "
            "the loop yourself, use SLAAccelerator(on_stop='flag') and look at "
            "accelerator.sla_should_stop after each optimizer.step()."
        )
        self.step = step
        self.action = action
        self.run_folder = run_folder


def check_on_stop(on_stop: str) -> OnStop:
    """Returns ``on_stop``; ValueError if it is none of the two."""
    if on_stop not in get_args(OnStop):
        raise ValueError(
            f"on_stop must be 'raise' or 'flag', got {on_stop!r}: 'raise' ends the loop by "
            "TrainingStoppedError, 'flag' only turns sla_should_stop on."
        )
    return cast("OnStop", on_stop)
