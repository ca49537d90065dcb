"""Carrying out what was decided: what for, when it is done, and where training is then."""

from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any

from slav1.decision import Action, Decision
from slav1.recorder import Recorder
from slav1.recorder.command import CommandReader, Words
from slav1.recorder.layout import Word
from slav1.session import messages
from slav1.session.link import MonitorLink

BACK_LIMIT_S = 30.0
"""How long a rank that went back waits until its monitor has taken that in, in seconds: if
it went on before, steps of before and after would meet."""


class Orders:
    """One rank's part in a decision, after it was handed out at a boundary."""

    def __init__(
        self,
        words: Words,
        command: CommandReader,
        recorder: Recorder,
        link: Callable[[], MonitorLink | None],
    ) -> None:
        """Starts before the first decision.

        Args:
            words: Words of this rank's block.
            command: Hands out the actions.
            recorder: Knows which step comes next.
            link: Returns the connection to the monitor; None when there is none.
        """
        self._words = words
        self._command = command
        self._recorder = recorder
        self._link = link
        self._decision: Decision | None = None

    def decision(self) -> Decision | None:
        """See :meth:`slav1.session.Session.decision`."""
        number = self._command.number
        if number and (self._decision is None or self._decision.number != number):
            self._decision = self._read(number)
        return self._decision

    def confirm(self, step: int) -> None:
        """See :meth:`slav1.session.Session.confirm`."""
        # Read now: the next decision may overwrite it as soon as this one is done.
        decision = self.decision()
        self._words[Word.CARRIED_OUT_STEP] = step
        self._words[Word.CARRIED_OUT_NS] = monotonic_ns()
        if decision is None or decision.action is not Action.ROLLBACK:
            self._command.confirm()

    def rolled_back(self, to_step: int, state: Any) -> None:
        """See :meth:`slav1.session.Session.rolled_back`."""
        link = self._link()
        if link is not None:
            # Its answer says that whatever was recorded before is taken in.
            link.answer_to(
                lambda number: messages.WentBack(number=number, to_step=to_step, state=state),
                BACK_LIMIT_S,
            )
        self._recorder.forget_times()
        self._recorder.starts_at(to_step + 1)
        self._words[Word.CARRIED_OUT_NS] = monotonic_ns()
        self._command.confirm()

    def stopped_instead(self) -> None:
        """The rank can't go back, and stops."""
        self._command.confirm()

    def _read(self, number: int) -> Decision:
        words, link = self._words, self._link()
        ask = partial(messages.AskDecision, decision=number)
        told = None if link is None else link.answer_to(lambda question: ask(number=question))
        if not isinstance(told, messages.Decided) or told.decision != number:
            told = messages.Decided(
                number=0, decision=0, reason="The monitor that knows it does not answer."
            )
        onset_step, alarm_step = words[Word.ONSET_STEP], words[Word.ALARM_STEP]
        return Decision(
            number=number,
            action=Action(words[Word.ACTION]),
            rule=told.rule,
            rank=told.rank,
            reason=told.reason,
            step=words[Word.SCHEDULE_STEP],
            onset_step=None if onset_step < 0 else onset_step,
            alarm_step=None if alarm_step < 0 else alarm_step,
        )
