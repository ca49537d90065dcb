"""The trainer's end of the scheduled decision: what to do at a step boundary."""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from slav1.decision import Action
from slav1.recorder.layout import Word

FIRST_DELAY_S = 20e-6
"""First pause between two looks for the schedule, in seconds; it doubles from there."""

LONGEST_DELAY_S = 1e-3
"""Longest pause between two looks for the schedule, in seconds."""

ALIVE_CHECK_S = 0.1
"""Waiting time after which the trainer asks again whether the monitor lives, in seconds."""

# Plain integers: a lookup in the enum would double the time of the hot path.
_STEP = int(Word.STEP)
_HOLD = int(Word.HOLD)


class Words(Protocol):
    """The words of one rank's block, by index: ``memoryview`` cast to ``q``."""

    def __getitem__(self, index: int, /) -> int:
        """Reads one word."""
        ...

    def __setitem__(self, index: int, value: int, /) -> None:
        """Writes one word."""
        ...


class _Schedule(NamedTuple):
    number: int
    step: int
    action: int


class CommandReader:
    """Publishes the step a rank enters and says what to do at a step boundary.

    The order is what keeps ranks together: the step about to be entered is
    written *before* the hold is read. So a rank either sees the hold and waits,
    or its monitor sees the step it went into; either way the rank can act at the
    end of the step it published, and not before.
    """

    def __init__(
        self,
        words: Words,
        is_monitor_alive: Callable[[], bool],
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Starts before the first boundary of a process.

        Args:
            words: Words of this rank's block.
            is_monitor_alive: Whether the process that writes ``HOLD`` still exists.
                Must stay False once it was False: a rank that gave up never acts on
                the decision it waited for.
            sleep: Pauses for so many seconds.
        """
        self._words = words
        self._is_monitor_alive = is_monitor_alive
        self._sleep = sleep
        self._settled = 0
        self._handed_out = 0
        self.is_monitor_gone = False
        """Whether this rank waited for a monitor that had ended."""

    @property
    def number(self) -> int:
        """Number of the decision whose action was handed out last; 0 for none."""
        return self._handed_out

    @property
    def is_deciding(self) -> bool:
        """Whether a decision has begun whose action was not handed out yet."""
        return self._words[_HOLD] not in (0, self._settled)

    def at_boundary(self, step: int) -> Action | None:
        """Publishes that the next step is entered, unless there is something to do.

        Waits only while a decision is being made.

        Args:
            step: Optimizer step that has just ended; above that of the call before, unless
                a rollback was carried out in between.

        Returns:
            The action to carry out now, before the next step, on every rank alike;
            call :meth:`confirm` after it. None if training goes on.
        """
        words = self._words
        words[_STEP] = step + 1
        if not words[_HOLD]:
            return None
        return self._decide(step)

    def confirm(self) -> None:
        """Publishes that the action handed out last was carried out."""
        assert self._handed_out, "confirm() comes after at_boundary() returned an action"
        self._words[Word.CARRIED_OUT] = self._handed_out

    def _decide(self, step: int) -> Action | None:
        schedule = self._wait()
        if schedule is None or step < schedule.step:
            return None
        self._settled = self._handed_out = schedule.number
        return Action(schedule.action)

    def _wait(self) -> _Schedule | None:
        """Returns the schedule of the decision being made; None if there is none to wait for."""
        delay_s, unchecked_s = FIRST_DELAY_S, 0.0
        while True:
            number = self._words[_HOLD]
            if number in (0, self._settled):
                return None
            schedule = self._schedule_of(number)
            if schedule is not None:
                return schedule
            if self.is_monitor_gone:
                self._settled = number
                return None
            if unchecked_s >= ALIVE_CHECK_S:
                # Looks once more after the monitor ended: it may have published just before.
                self.is_monitor_gone = not self._is_monitor_alive()
                unchecked_s = 0.0
                continue
            self._sleep(delay_s)
            unchecked_s += delay_s
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def _schedule_of(self, number: int) -> _Schedule | None:
        words = self._words
        if words[Word.SCHEDULED] != number:
            return None
        # The three belong together: the monitor overwrites them for the next decision
        # only after this rank has confirmed this one.
        return _Schedule(number, words[Word.SCHEDULE_STEP], words[Word.ACTION])
