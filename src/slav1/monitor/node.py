"""One node's ranks under watch: events in, reports to the coordinator out."""

from collections.abc import Callable, Iterator
from functools import singledispatchmethod
from pathlib import Path
from time import monotonic
from typing import Any

from slav1.contract import Contract, Mode
from slav1.coordinator import messages as job
from slav1.coordinator.say import say
from slav1.decision import Action
from slav1.guard import Guard
from slav1.monitor import hold
from slav1.monitor.config import MonitorConfig
from slav1.monitor.ender import Ending
from slav1.monitor.gate import Connection
from slav1.monitor.survey import Survey
from slav1.monitor.watched_rank import WatchedRank
from slav1.recorder.layout import Word
from slav1.sample import Round, Sample
from slav1.session import messages as local

REPORT_EVERY_S = 1.0
"""A report goes out at least so often, in seconds, empty or not."""

HOLD_LIMIT_S = 8.0
"""How long ranks may be held without a schedule before the node lets go, in seconds."""


class NodeMonitor:
    """Watches the ranks of one node. Knows no rule by name: detectors judge."""

    def __init__(
        self,
        config: MonitorConfig,
        contract: Contract,
        send: Callable[[job.FromNode], None],
    ) -> None:
        """Starts with no rank.

        Args:
            config: What this monitor was told.
            contract: The contract in force.
            send: Sends a message to the coordinator.
        """
        self._folder = Path(config.run_folder)
        self._grace_s = contract.monitor.grace_s
        self._wants_stacks = contract.monitor.stacks
        self._send = send
        self._guard = Guard(
            {
                name: rule.detector
                for name, rule in contract.rules.items()
                if Round not in rule.detector.WATCHES and rule.mode is not Mode.OFF
            }
        )
        self.ranks: dict[int, WatchedRank] = {}
        """Ranks under watch, those that left included until the end."""
        self._last_report_s = float("-inf")
        self._survey: Survey | None = None
        self._ending: Ending | None = None
        self._held = 0
        self._held_at_s = 0.0
        self._carried_out: set[tuple[int, int]] = set()
        self._is_done_told = False
        self._ring_trouble = False

    @property
    def present(self) -> list[WatchedRank]:
        """Ranks that have neither said goodbye nor died."""
        return [rank for rank in self.ranks.values() if not rank.has_left]

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that wants a look every millisecond or two."""
        return bool(self._held) or self._survey is not None

    def join(self, hello: local.Hello, connection: Connection, fds: list[int]) -> WatchedRank:
        """Takes a rank under watch.

        Raises:
            ValueError: If its block can't be read, or the rank is here already.
        """
        if hello.rank in self.ranks:
            raise ValueError(
                f"rank {hello.rank} is watched already, by process "
                f"{self.ranks[hello.rank].process.pid}"
            )
        rank = WatchedRank(hello, connection, fds)
        self.ranks[hello.rank] = rank
        self._send(job.RankJoined(rank=hello.rank))
        return rank

    def on_rank_message(self, rank: WatchedRank, message: local.FromRank) -> None:
        """Takes in what a rank says."""
        if isinstance(message, local.Failure):
            phase = rank.pulse(monotonic()).phase
            rank.exit_reason = message.error
            self._send(
                job.FirstException(
                    rank=rank.rank, step=message.step, phase=phase, error=message.error
                )
            )
        elif isinstance(message, local.Note):
            self._send(
                job.RankNote(
                    rank=rank.rank,
                    step=message.step,
                    message=message.message,
                    evidence=message.evidence,
                )
            )
        elif isinstance(message, local.Facts):
            self._send(job.RankFacts(rank=rank.rank, num_batches=message.num_batches))
        elif isinstance(message, local.Restore):
            self._send(job.StateRestored(state=message.state))
        elif isinstance(message, local.AskState):
            self._send(job.StateAsked(rank=rank.rank))
        elif isinstance(message, local.Goodbye):
            self._leave(rank, message.reason)

    def on_rank_gone(self, rank: WatchedRank) -> None:
        """A rank's process has ended, or its connection has."""
        if rank.has_left or rank.process.is_alive():
            return
        rank.process_ended()
        self._look(monotonic())

    def on_message(self, message: job.FromCoordinator) -> None:
        """Takes in what the coordinator says."""
        self._on(message)

    def on_tick(self, now_s: float) -> None:
        """Reads all ranks once; called every tick, and more often while ``is_busy``."""
        self._look(now_s)
        if self._survey is not None and self._survey.is_complete(now_s):
            survey, self._survey = self._survey, None
            self._send(job.Survey(number=survey.number, positions=survey.positions(now_s)))
        if self._ending is not None:
            self._ending.advance(now_s)
        if self._held:
            self._look_at_decision(now_s)
        if self.ranks and not self.present and not self._is_done_told:
            self._tell_done()

    def beat(self) -> None:
        """Shows the ranks that their monitor lives."""
        for rank in self.present:
            rank.block.words[Word.BEAT] += 1

    def tell_done(self) -> None:
        """Says that no rank will come any more, as when the parent is gone."""
        if not self._is_done_told:
            self._tell_done()

    def close(self) -> None:
        """Lets go of every rank."""
        for rank in self.ranks.values():
            rank.close()

    def _look(self, now_s: float) -> None:
        samples: list[Sample] = []
        findings: list[dict[str, Any]] = []
        for event in self._events(now_s, samples):
            findings += [job.pack_breach(breach) for breach in self._guard.observe(event)]
        if samples or findings or now_s - self._last_report_s >= REPORT_EVERY_S:
            self._last_report_s = now_s
            self._send(job.Report(samples=samples, findings=findings))
        for rank in self.present:
            if not rank.process.is_alive():
                self._lose(rank)

    def _events(self, now_s: float, samples: list[Sample]) -> Iterator[Any]:
        for rank in self.present:
            for sample in rank.new_samples():
                samples.append(sample)
                yield sample
            yield rank.pulse(now_s)

    def _lose(self, rank: WatchedRank) -> None:
        rank.has_left = True
        self._save_ring(rank)
        reason = rank.exit_reason or "lost"
        is_lost = rank.exit_reason is None
        self._send(job.RankLeft(rank=rank.rank, is_lost=is_lost, reason=reason))

    def _leave(self, rank: WatchedRank, reason: str) -> None:
        now_s = monotonic()
        self._look(now_s)
        if self._held:
            # What it did last must be known before it counts as gone.
            self._look_at_decision(now_s)
        rank.has_left = True
        rank.exit_reason = rank.exit_reason or reason
        self._save_ring(rank)
        rank.connection.send(local.Farewell())
        self._send(job.RankLeft(rank=rank.rank, is_lost=False, reason=rank.exit_reason))

    def _save_ring(self, rank: WatchedRank) -> None:
        try:
            rank.save_ring(self._folder)
        except OSError as error:
            if not self._ring_trouble:
                say(
                    f"The flight ring of rank {rank.rank} can't be written to "
                    f"{self._folder}: {error}. Training is not affected."
                )
            self._ring_trouble = True

    def _tell_done(self) -> None:
        self._is_done_told = True
        num_lost = sum(rank.num_lost for rank in self.ranks.values())
        self._send(job.NodeDone(num_seen=dict(self._guard.num_seen), num_lost=num_lost))

    def _words(self) -> list[Any]:
        return [rank.block.words for rank in self.ranks.values()]

    def _look_at_decision(self, now_s: float) -> None:
        for rank in self.ranks.values():
            words = rank.block.words
            key = (self._held, rank.rank)
            if hold.has_carried_out(words, self._held) and key not in self._carried_out:
                self._carried_out.add(key)
                self._send(
                    job.CarriedOut(
                        number=self._held,
                        rank=rank.rank,
                        step=words[Word.CARRIED_OUT_STEP],
                        latency_s=max(0.0, words[Word.CARRIED_OUT_NS] * 1e-9 - self._held_at_s),
                    )
                )
        is_scheduled = any(words[Word.SCHEDULED] == self._held for words in self._words())
        if not is_scheduled and now_s - self._held_at_s > HOLD_LIMIT_S:
            self._on(job.Release(number=self._held))

    @singledispatchmethod
    def _on(self, message: Any) -> None:
        raise TypeError(f"no answer to a {type(message).__name__}")

    @_on.register
    def _(self, message: job.Hold) -> None:
        self._held, self._held_at_s = message.number, monotonic()
        hold.hold(self._words(), message.number)
        step = hold.acknowledged_step(self._words())
        self._send(job.Acknowledged(number=message.number, step=step))

    @_on.register
    def _(self, message: job.Schedule) -> None:
        hold.publish(self._words(), message.number, message.step, Action(message.action))

    @_on.register
    def _(self, message: job.Release) -> None:
        hold.release(self._words(), message.number)
        if self._held == message.number:
            self._held = 0

    @_on.register
    def _(self, message: job.AskSurvey) -> None:
        folder = self._folder if self._wants_stacks else None
        self._survey = Survey(message.number, list(self.ranks.values()), monotonic(), folder)

    @_on.register
    def _(self, message: job.End) -> None:
        now_s = monotonic()
        term_at_s = now_s + message.leave_s
        self._ending = Ending(
            ranks=[rank for rank in self.ranks.values() if not rank.has_left],
            term_at_s=term_at_s,
            kill_at_s=term_at_s + self._grace_s,
        )
        for rank in self._ending.ranks:
            self._save_ring(rank)
        self._ending.begin()

    @_on.register
    def _(self, message: job.StateAnswer) -> None:
        if message.rank in self.ranks:
            self.ranks[message.rank].connection.send(local.State(state=message.state))

    @_on.register
    def _(self, message: job.Beat) -> None:
        # Being heard is all that it is for.
        del message

    @_on.register
    def _(self, message: job.Dismissed) -> None:
        # The loop that owns this object ends when it sees this message.
        del message
