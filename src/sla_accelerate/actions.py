"""Carrying decisions out in Accelerate: the user's own loop is ended, or told."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

from sla_accelerate._batches.position import Positions
from slav1.checkpoint.errors import CheckpointError
from slav1.decision import Action, Decision
from slav1.phase import Phase
from slav1.session import Session

_log = logging.getLogger("sla_accelerate")

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


class NoWayBackError(Exception):
    """There is nothing to roll back to."""


class Harm(NamedTuple):
    """The steps that a rollback undoes."""

    onset_step: int
    """The first bad one, from 0."""

    alarm_step: int
    """The last one that is known to be bad."""

    are_batches_bad: bool
    """Whether it was their batches; False where only the beginning of the harm is known, not
    what found it."""


def harm_of(decision: Decision, step: int) -> Harm:
    """What a decision to roll back is about; ``step`` is where it is carried out."""
    alarm = step if decision.alarm_step is None else decision.alarm_step
    onset = alarm if decision.onset_step is None else decision.onset_step
    is_onset_alone = decision.alarm_step is None and decision.onset_step is not None
    return Harm(onset, alarm, not is_onset_alone)


class Watch(Protocol):
    """What an order needs of the watched training; see :class:`LoopWatch`."""

    session: Session
    step: int
    positions: Positions | None

    def aside(self, phase: Phase) -> AbstractContextManager[None]: ...

    def drain(self) -> None: ...

    def leave(self, reason: str) -> None: ...


class RollBack(Protocol):
    """Takes the state of all ranks back."""

    def __call__(self, watch: Any, decision: Decision) -> None:
        """Collective. Takes it back, or raises NoWayBackError or CheckpointError on all."""
        ...


class Mild(Protocol):
    """Carries out what neither stops training nor takes it back."""

    def __call__(self, watch: Any, action: Action) -> None:
        """Collective. Does it at the end of a step."""
        ...


class Orders:
    """What the contract has told one training to do, and what of it is still to be done."""

    def __init__(self, on_stop: OnStop) -> None:
        """Starts without any.

        Args:
            on_stop: What a stop does.
        """
        self.due: Decision | None = None
        """A rollback that waits until the loop asks for its next batch."""
        self.stopped_at: int | None = None
        """Step at whose end training was stopped; None if it was not."""
        self.find_rollback: Callable[[], RollBack | None] = lambda: None
        """Finds what takes the state back; returns None if nothing can."""
        self.find_mild: Callable[[], Mild | None] = lambda: None
        """Finds what carries out the rest; returns None if nothing can."""
        self.finish: Callable[[], None] = lambda: None
        """Waits for what is still being written, before the run is left."""
        self.advice = (
            "Call load_state('last_good') before the loop; at a first start it returns None and "
            "changes nothing."
        )
        """What lets a run that is started again go on."""
        self._on_stop = on_stop
        self._action = Action.LOG

    def carry_out(self, watch: Watch, action: Action) -> None:
        """An action is handed out at the end of a step."""
        if action < Action.ROLLBACK:
            watch.drain()
            watch.session.confirm(watch.step)
            if (mild := self.find_mild()) is not None:
                mild(watch, action)
            return
        watch.session.confirm(watch.step)
        if action is not Action.ROLLBACK:
            self._stop(watch, action)
            return
        self.due = watch.session.decision()
        if watch.positions is None or not watch.positions.trains_with_loader:
            self.stop_instead(
                watch,
                "the loop does not train with batches of a prepared loader, so they can't be "
                "set back.",
            )

    def roll_back(self, watch: Watch) -> None:
        """Collective. Goes back, now that the loop has done all that belongs to its step: the
        learning rate is set, an average taken, a metric counted."""
        decision, roll_back = self.due, self.find_rollback()
        assert decision is not None
        try:
            if roll_back is None:
                raise NoWayBackError("the accelerator that could do it is gone.")
            with watch.aside(Phase.CHECKPOINT):
                roll_back(watch, decision)
        except (NoWayBackError, CheckpointError) as error:
            self.stop_instead(watch, str(error))

    def is_back(self, watch: Watch, step: int, detectors: Any) -> None:
        """The state is that of the end of ``step`` again."""
        self.due = None
        watch.session.rolled_back(step, detectors)

    def tell_that_all_is_done_again(self, session: Session) -> None:
        """A launcher has started the run again, and it is at its first step all the same."""
        if session.rank == 0:
            session.note(
                f"This is start {session.attempt + 1} of the run, and it trains from the first "
                f"step: the script has loaded no checkpoint. {self.advice}",
                step=0,
            )

    @property
    def wants_restart(self) -> bool:
        """Whether training was stopped to be started again."""
        return self.stopped_at is not None and self._action is Action.RESTART

    def give_up(self, watch: Watch) -> None:
        """The training is left; what is still due will not be done."""
        if self.due is not None:
            self._tell(watch, "the loop ended before it asked for another batch.")

    def stop_error(self, watch: Watch) -> TrainingStoppedError:
        """What a loop that was stopped gets."""
        assert self.stopped_at is not None
        return TrainingStoppedError(
            step=self.stopped_at, action=self._action, run_folder=watch.session.run_folder
        )

    def stop_instead(self, watch: Watch, reason: str) -> None:
        """Stops because there is no way back; ``reason`` says why in words."""
        self._tell(watch, reason)
        self._stop(watch, Action.STOP)

    def _tell(self, watch: Watch, reason: str) -> None:
        message = f"The run can't be rolled back and stops instead: {reason}"
        _log.error(message)
        self.due = None
        watch.session.stop_instead(message)

    def _stop(self, watch: Watch, action: Action) -> None:
        self.stopped_at = watch.step
        self._action = action
        if self._on_stop == "raise":
            watch.leave("finished")
            raise self.stop_error(watch)
