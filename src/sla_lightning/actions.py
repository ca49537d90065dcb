"""Carrying decisions out in Lightning: a stop that neither validates nor saves."""

import logging
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint

from sla_lightning._compat import SIGTERMException
from slav1.session import Session

_log = logging.getLogger("sla_lightning")


class StopRequested(Exception):  # noqa: N818 - no error: it unwinds the loop on all ranks
    """All ranks raise it at the end of the same step."""


class JobEndedError(RuntimeError):
    """The contract ended this process because the job could not go on."""


def drive(trainer: Trainer, session: Session, run: Callable[[], None]) -> None:
    """Runs the fit loop and carries out what the callback raises.

    Args:
        trainer: The trainer.
        session: This rank's session.
        run: The loop itself.

    Raises:
        JobEndedError: If SIGTERM came from the contract. Lightning would end the process
            with status 0 then, and a launcher would take the job for finished.
    """
    try:
        run()
    except StopRequested:
        _end_without_saving(trainer)
    except SIGTERMException as error:
        if not session.is_ended_by_contract:
            raise
        raise JobEndedError(
            f"The stability contract ended this job; {session.run_folder}/ledger.jsonl says why."
        ) from error


def _end_without_saving(trainer: Trainer) -> None:
    """Ends the run as Lightning does, but the breached state is not saved, not even by
    a hook that comes before this ``fit`` has been torn down.

    ``trainer.should_stop`` is no way out: it validates first, lets ModelCheckpoint save,
    and gives way to ``min_steps``.
    """
    trainer.training = True
    trainer.lightning_module.train()
    host: Any = trainer
    kept = host.callbacks
    host.callbacks = [callback for callback in kept if not isinstance(callback, Checkpoint)]
    host.save_checkpoint = _refuse_to_save
    try:
        trainer.fit_loop.on_run_end()
    finally:
        host.callbacks = kept


def _refuse_to_save(filepath: Any, *_: Any, **__: Any) -> None:
    _log.warning(
        "Not saved: %s. The contract stopped training because its state is in breach.", filepath
    )
