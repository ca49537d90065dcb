"""What a user wants of the contract, and what there is to know before Accelerate is set up."""

import os
from typing import NamedTuple

from accelerate.state import PartialState  # type: ignore[import-untyped]

from sla_accelerate._config.settings import Asked
from sla_accelerate._place import words_of_launcher
from sla_accelerate.actions import OnStop, check_on_stop
from slav1.contract import Contract


class Wishes(NamedTuple):
    """How one accelerator is watched."""

    asked: Asked
    """Contract and run directory as far as the script says them."""

    on_stop: OnStop
    """What a stop does."""

    skips_bad_batches: bool
    """Whether a rollback leaves out the batches of the bad steps."""

    logs_figures: bool
    """Whether the user's trackers are given the contract's figures."""

    is_unasked: bool = False
    """Whether the script has said nothing: what it says later on wins."""


def wish(
    contract: str | Contract | None = None,
    run_dir: str | None = None,
    *,
    on_stop: str = "raise",
    skip_bad_batches: bool = True,
    log_figures: bool = False,
) -> Wishes:
    """Takes what is said; arguments as for the accelerator.

    Raises:
        ValueError: If ``on_stop`` is no such word.
    """
    stop = check_on_stop(on_stop)
    return Wishes((contract, run_dir), stop, skip_bad_batches, log_figures)


def listen() -> dict[str, str]:
    """What the launcher of this process said."""
    # It fills the environment up, and scripts may set it up before their accelerator.
    is_set_up = bool(PartialState._shared_state)  # noqa: SLF001 - asking it sets it up
    return words_of_launcher(os.environ, is_set_up=is_set_up)
