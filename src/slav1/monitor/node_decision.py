"""The node's part in a decision: hold its ranks, publish the schedule, see it carried out."""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from slav1.coordinator import messages as job
from slav1.decision import Action
from slav1.monitor import hold
from slav1.monitor.watched_rank import WatchedRank
from slav1.recorder.layout import Word
from slav1.session import messages as local

HOLD_LIMIT_S = 8.0
"""How long ranks may be held without a schedule before the node lets go, in seconds."""


class NodeDecision:
    """Follows the coordinator's orders about one decision at a time."""

    def __init__(
        self, ranks: Mapping[int, WatchedRank], send: Callable[[job.FromNode], None]
    ) -> None:
        """Starts with none.

        Args:
            ranks: All ranks of the node that ever joined; seen as it changes.
            send: Sends a message to the coordinator.
        """
        self._ranks = ranks
        self._send = send
        self._number = 0
        self._held_at_s = 0.0
        self._is_scheduled = False
        self._carried_out: set[int] = set()
        self._schedule: job.Schedule | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether ranks are held, or will act soon."""
        return self._number != 0

    def on_hold(self, message: job.Hold) -> None:
        """Makes all ranks wait at their next boundary."""
        self._number, self._held_at_s = message.number, monotonic()
        self._is_scheduled = False
        self._carried_out = set()
        hold.hold(self._words(), message.number)
        step = hold.acknowledged_step(self._words())
        self._send(job.Acknowledged(number=message.number, step=step))

    def on_schedule(self, message: job.Schedule) -> None:
        """Tells all ranks what to do and when, unless they were let go meanwhile."""
        if message.number == self._number:
            self._is_scheduled = True
            self._schedule = message
            hold.explain(self._words(), message.onset_step, message.alarm_step)
            hold.publish(self._words(), message.number, message.step, Action(message.action))

    def explain(self, question: local.AskDecision) -> local.Decided:
        """Says what a decision is for."""
        schedule = self._schedule
        if schedule is None or schedule.number != question.decision:
            return local.Decided(number=question.number, decision=0)
        return local.Decided(
            number=question.number,
            decision=schedule.number,
            rule=schedule.rule,
            rank=schedule.rank,
            reason=schedule.reason,
        )

    def on_release(self, number: int) -> None:
        """Lets all ranks go on."""
        hold.release(self._words(), number)
        if self._number == number:
            self._number = 0

    def look(self, now_s: float) -> None:
        """Reports who acted, and lets go when no schedule comes."""
        if not self.is_under_way:
            return
        for rank in self._ranks.values():
            if rank.rank not in self._carried_out:
                self._look_at(rank)
        if not self._is_scheduled and now_s - self._held_at_s > HOLD_LIMIT_S:
            self.on_release(self._number)

    def _look_at(self, rank: WatchedRank) -> None:
        words = rank.block.words
        if not hold.has_carried_out(words, self._number):
            return
        self._carried_out.add(rank.rank)
        self._send(
            job.CarriedOut(
                number=self._number,
                rank=rank.rank,
                step=words[Word.CARRIED_OUT_STEP],
                latency_s=max(0.0, words[Word.CARRIED_OUT_NS] * 1e-9 - self._held_at_s),
            )
        )

    def _words(self) -> list[Any]:
        return [rank.block.words for rank in self._ranks.values()]
