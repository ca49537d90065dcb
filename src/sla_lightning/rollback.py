"""Going back, in the running process, to the last healthy checkpoint."""

from collections import deque
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer

from sla_lightning import _compat, _compat_position
from sla_lightning.checkpoint_guard import CheckpointGuard
from slav1.checkpoint import CheckpointError, Choice, Shelf
from slav1.decision import Decision
from slav1.phase import Phase
from slav1.session import Session

REMEMBERED_STEPS = 4096
"""Steps whose batches are known, so that they can be skipped."""


class Batches:
    """Which batches each step was made of, and which are not to be seen again."""

    def __init__(self) -> None:
        """Starts with no step made and nothing skipped."""
        self._ends: deque[tuple[int, int]] = deque(maxlen=REMEMBERED_STEPS)
        self.end_step = self._ends.append
        """Takes a step, and the number of batches drawn when it ended, as a pair."""
        self._skipped: list[range] = []

    def of_steps(self, first: int, last: int) -> range | None:
        """Numbers of the batches, counted over all epochs from 0, that steps were made of."""
        ends = dict(self._ends)
        if first - 1 not in ends or last not in ends:
            return None
        return range(ends[first - 1], ends[last])

    def skip(self, numbers: range) -> None:
        """Lets training go on without these."""
        self._skipped.append(numbers)

    def is_skipped(self, number: int) -> bool:
        """Whether a batch is not to be trained on."""
        return any(number in numbers for numbers in self._skipped)


class Rollback:
    """Takes training back when all ranks have unwound their loops at the end of one step."""

    def __init__(
        self,
        trainer: Trainer,
        session: Session,
        shelf: Shelf,
        guard: CheckpointGuard,
        take_up: Callable[[], Any],
    ) -> None:
        """Stores what it works with.

        Args:
            trainer: The trainer.
            session: This rank's session.
            shelf: The checkpoints of the run.
            guard: What the trainer's strategy loads through.
            take_up: Puts data and random numbers where the loaded checkpoint says, and
                returns the detectors' memories that it holds.
        """
        self._trainer = trainer
        self._session = session
        self._shelf = shelf
        self._guard = guard
        self._take_up = take_up
        self._is_skipping = False
        self.batches = Batches()
        """What each step was made of."""

    def __call__(self) -> bool:
        """Collective. Goes back as the decision says that was handed out last.

        Returns:
            Whether training can go on; False if there is no checkpoint to go back to.
        """
        self._session.recorder.enter(int(Phase.CHECKPOINT))
        decision = self._session.decision()
        assert decision is not None, "a rollback has been handed out"
        onset = self._onset(decision)
        choice = self._choose(onset)
        if choice is None:
            return False
        _compat_position.forget_progress(self._trainer)
        # It has just been read whole, by all ranks together.
        self._guard.trusted = choice.path
        _compat_position.restore(self._trainer, choice.path)
        self._guard.trusted = None
        memories = self._take_up()
        skipped = self.leave_out(decision, onset)
        self._shelf.rolled_back(choice)
        self._session.rolled_back(choice.step, memories)
        self._tell(choice, decision, skipped)
        return True

    def _onset(self, decision: Decision) -> int:
        steps = (decision.onset_step, decision.alarm_step, decision.step)
        return next(step for step in steps if step is not None)

    def _choose(self, onset: int) -> Choice | None:
        try:
            choice = self._shelf.choose(before_step=onset)
        except CheckpointError as error:
            self._session.stop_instead(f"There is no way back, so training stops: {error}")
            return None
        if choice is None:
            self._session.stop_instead(
                "There is no way back, so training stops: the run has no checkpoint. Save some, "
                "or set checkpoint.every_steps in the contract."
            )
        return choice

    def leave_out(self, decision: Decision, onset: int) -> range | None:
        """Sees to it that the batches from onset to alarm are not trained on again; returns
        their numbers, None if they are not known."""
        if decision.onset_step is None or decision.alarm_step is None:
            return None
        numbers = self.batches.of_steps(onset, decision.alarm_step)
        if numbers is None:
            self._note(
                f"The batches of steps {onset} to {decision.alarm_step} are not known any more, "
                "so they are not skipped."
            )
            return None
        self.batches.skip(numbers)
        if not self._is_skipping:
            self._is_skipping = True
            _compat.skip_batches(self._trainer, self.batches.is_skipped)
        return numbers

    def _tell(self, choice: Choice, decision: Decision, skipped: range | None) -> None:
        if self._session.rank != 0:
            return
        without = f" without batches {skipped[0]} to {skipped[-1]}" if skipped else ""
        evidence: dict[str, Any] = {"path": str(choice.path), "decision": decision.number}
        if skipped:
            evidence |= {"first_skipped_batch": skipped[0], "last_skipped_batch": skipped[-1]}
        # The coordinator writes down that all ranks are back; here is where they are.
        self._session.peers.record(
            "notice",
            f"Training goes on from {choice.path}, after step {choice.step}{without}.",
            step=choice.step,
            rule=decision.rule,
            **evidence,
        )

    def _note(self, message: str) -> None:
        if self._session.rank == 0:
            self._session.note(message, step=self._trainer.global_step - 1)
