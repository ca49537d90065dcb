"""Carrying decisions out in Lightning: a stop that neither validates nor saves, a way back."""

import logging
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

from slav1.decision import Action
from slav1.session import Session

_log = logging.getLogger("sla_lightning")


class StopRequested(Exception):  # noqa: N818 - no error: it unwinds the loop on all ranks
    """All ranks raise it at the end of the same step."""


class RollbackRequested(Exception):  # noqa: N818 - the same
    """All ranks raise it at the end of the same step."""


class JobEndedError(RuntimeError):
    """The contract ended this process because the job could not go on."""


class RestartError(JobEndedError):
    """The contract has the job started again: an error, or a launcher would take it for done."""


def drive(
    trainer: Trainer, session: Session, run: Callable[[], None], roll_back: Callable[[], bool]
) -> None:
    """Runs the fit loop and carries out what the callback raises.

    Args:
        trainer: The trainer.
        session: This rank's session.
        run: The loop itself; it can be run again after a rollback.
        roll_back: Collective. Takes training back; False if there is nothing to go back to.

    Raises:
        JobEndedError: If SIGTERM came from the contract. Lightning would end the process
            with status 0 then, and a launcher would take the job for finished.
        RestartError: On all ranks, if the job is to be started again.
    """
    while True:
        try:
            run()
        except RollbackRequested:
            if roll_back():
                continue
            _end_without_saving(trainer)
        except StopRequested:
            _end_without_saving(trainer)
            decision = session.decision()
            if decision is not None and decision.action is Action.RESTART:
                raise RestartError(
                    "The stability contract stopped this job at the end of step "
                    f"{decision.step} to have it started again, which is its launcher's to do "
                    f"(torchrun --max-restarts); {session.run_folder}/ledger.jsonl says why."
                ) from None
        except SIGTERMException as error:
            if not session.is_ended_by_contract:
                raise
            raise JobEndedError(
                f"The stability contract ended this job; {session.run_folder}/ledger.jsonl says "
                "why."
            ) from error
        return


def refuse_to_save(trainer: Trainer, why: str) -> None:
    """From now on the trainer saves nothing, and says so."""

    def refuse(filepath: Any, *_: Any, **__: Any) -> None:
        _log.warning("Not saved: %s. %s", filepath, why)

    host: Any = trainer
    host.save_checkpoint = refuse


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
    refuse_to_save(trainer, "The contract stopped training because its state is in breach.")
    try:
        trainer.fit_loop.on_run_end()
    finally:
        host.callbacks = kept
