"""One node's ranks under watch: events in, reports to the coordinator out."""

from collections.abc import Callable
from functools import singledispatchmethod
from pathlib import Path
from time import monotonic
from typing import Any

from slav1.contract import Contract
from slav1.coordinator import messages as job
from slav1.coordinator.say import say
from slav1.coordinator.strangers import Strangers
from slav1.monitor.config import MonitorConfig
from slav1.monitor.ender import Ending
from slav1.monitor.gate import Connection
from slav1.monitor.lifeline import Lifeline
from slav1.monitor.lookout import Lookout
from slav1.monitor.meetings import NodeMeetings
from slav1.monitor.node_decision import NodeDecision
from slav1.monitor.relay import RELAYED, relayed
from slav1.monitor.rings import Rings
from slav1.monitor.survey import Survey
from slav1.monitor.watched_rank import WatchedRank
from slav1.recorder.layout import Word
from slav1.session import messages as local
from slav1.session.parts import Part


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
        self._world_size = config.world_size
        self._node = config.node
        self._grace_s = contract.monitor.grace_s
        self._wants_stacks = contract.monitor.stacks
        self._send = send
        self._lookout = Lookout(contract, send)
        self.ranks: dict[int, WatchedRank] = {}
        """Ranks under watch, those that left included until the end."""
        self._lifeline = Lifeline(contract, monotonic())
        self._decision = NodeDecision(self.ranks, send)
        self._meetings = NodeMeetings(self.ranks, send)
        self._strangers = Strangers()
        self._survey: Survey | None = None
        self._is_survey_own = False
        self._ending: Ending | None = None
        self._is_done_told = False
        self._rings = Rings(self._folder)

    @property
    def present(self) -> list[WatchedRank]:
        """Ranks that have neither said goodbye nor died."""
        return [rank for rank in self.ranks.values() if not rank.has_left]

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that wants a look every millisecond or two."""
        is_sending = any(rank.connection.is_sending for rank in self.ranks.values())
        return self._decision.is_under_way or self._survey is not None or is_sending

    def join(self, hello: local.Hello, connection: Connection, fds: list[int]) -> WatchedRank:
        """Takes a rank under watch, and its descriptors.

        Raises:
            ValueError: If its block can't be read, or it is no rank of this job, or is
                here already. Its descriptors stay the caller's then.
        """
        if not 0 <= hello.rank < self._world_size:
            raise ValueError(f"the job has ranks 0 to {self._world_size - 1}, not {hello.rank}")
        if self._ending is not None:
            raise ValueError("the contract is ending this job")
        if connection.pid <= 0:
            raise ValueError(
                "its process can't be seen from the monitor (another PID namespace): set "
                "monitor.kind to thread or off"
            )
        if hello.rank in self.ranks:
            raise ValueError(
                f"rank {hello.rank} is watched already, by process "
                f"{self.ranks[hello.rank].process.pid}"
            )
        rank = WatchedRank(hello, connection, fds)
        self.ranks[hello.rank] = rank
        self._send(job.RankJoined(rank=hello.rank, can_roll_back=hello.can_roll_back))
        return rank

    def on_rank_message(self, rank: WatchedRank, message: local.FromRank) -> None:
        """Takes in what a rank says."""
        if isinstance(message, Part):
            whole = rank.parts.add(message)
            if whole is not None:
                self.on_rank_message(rank, local.decode_from_rank(whole))
        elif isinstance(message, local.Goodbye):
            self._leave(rank, message.reason)
        elif isinstance(message, local.Meet):
            self._meetings.add(rank, message, is_cut=self._lifeline.is_cut(monotonic()))
        elif isinstance(message, local.AskDecision):
            rank.connection.send(self._decision.explain(message))
        elif isinstance(message, local.WentBack):
            self._go_back(rank, message)
        elif isinstance(message, RELAYED):
            if isinstance(message, local.Failure):
                rank.exit_reason = message.error
            elif isinstance(message, local.AskState):
                # The answer waits for the steps up to now: a save need not wait for a tick.
                self._look(monotonic(), with_pulses=False)
            self._send(relayed(rank.rank, message, rank.phase))

    def on_rank_gone(self, rank: WatchedRank) -> None:
        """A rank's process has ended, or its connection has."""
        if rank.has_left or rank.process.is_alive():
            return
        self._look(monotonic(), with_pulses=True)

    def on_message(self, message: job.FromCoordinator) -> None:
        """Takes in what the coordinator says."""
        self._lifeline.hear(monotonic())
        self._on(message)

    def on_strangers(self, num_new: int) -> None:
        """Callers were turned away who are not of this run."""
        self._strangers.add(num_new, monotonic())

    def on_pause(self, now_s: float) -> None:
        """This monitor itself stood still: nobody's silence up to now counts."""
        self._lifeline.hear(now_s)
        for rank in self.present:
            rank.restart_clock(now_s)

    def on_tick(self, now_s: float) -> bool:
        """Reads all ranks once; returns whether any of them has ended a step."""
        self._look(now_s, with_pulses=self._lookout.is_pulse_due(now_s))
        self.look_closely(now_s)
        if self._ending is not None:
            self._ending.advance(now_s)
        else:
            self._look_after_ranks_alone(now_s)
        if num_strangers := self._strangers.take_burst(now_s):
            self._tell_strangers(num_strangers)
        if self.ranks and not self.present:
            self.tell_done()
        return self._lookout.has_news

    def look_closely(self, now_s: float) -> None:
        """Looks at what must not wait for the next tick; called often while ``is_busy``."""
        self._decision.look(now_s)
        for rank in self.ranks.values():
            rank.connection.flush()
        if self._survey is not None and self._survey.is_complete(now_s):
            survey, self._survey = self._survey, None
            positions = survey.positions(now_s)
            if self._is_survey_own:
                self._lifeline.judge(positions)
            else:
                self._send(job.Survey(number=survey.number, positions=positions))

    def tell_done(self) -> None:
        """Says that no rank will come any more, as when all have left."""
        if self._is_done_told:
            return
        self._is_done_told = True
        if num_strangers := self._strangers.take_burst(monotonic(), is_last=True):
            self._tell_strangers(num_strangers)
        self._rings.await_beside()
        self._rings.tell_unsaved()
        num_lost = sum(rank.num_lost for rank in self.ranks.values())
        self._send(job.NodeDone(num_seen=self._lookout.num_seen, num_lost=num_lost))

    def close(self) -> None:
        """Lets go of every rank."""
        for rank in self.ranks.values():
            rank.close()

    def _look(self, now_s: float, *, with_pulses: bool) -> None:
        # Asked before the pulses are taken, so that whoever counts as lost has been judged.
        ended = self._ended_ranks() if with_pulses else []
        for finding in self._lookout.look(self.present, now_s, with_pulses=with_pulses):
            self._lifeline.note(finding)
        for rank in ended:
            self._lose(rank)

    def _ended_ranks(self) -> list[WatchedRank]:
        ended = [rank for rank in self.present if rank.process.is_known_gone()]
        for rank in ended:
            rank.process_ended()
        return ended

    def _look_after_ranks_alone(self, now_s: float) -> None:
        """Without a coordinator nobody else ends ranks that hang, or ends what they wait for."""
        if self._lifeline.is_cut(now_s):
            self._meetings.on_cut()
        if self._lifeline.has_changed(now_s):
            is_cut = self._lifeline.is_cut(now_s)
            say(
                f"Node {self._node}: the coordinator beside rank 0 "
                + ("is silent: nothing is written down." if is_cut else "is heard again.")
            )
        if self._survey is None and self._lifeline.wants_look(now_s):
            self._begin_survey(job.AskSurvey(number=0), is_own=True)
        reason = self._lifeline.reason_to_end(now_s)
        if reason is not None and self.present:
            say(f"Node {self._node} ends its ranks without the coordinator: {reason.message}")
            self._end(job.LEAVE_S if reason.rule == "liveness" else 0.0)

    def _save_ring(self, rank: WatchedRank) -> None:
        if self._ending is None:
            self._rings.save(rank)
        else:
            self._rings.save_beside([rank])

    def _begin_survey(self, asked: job.AskSurvey, *, is_own: bool) -> None:
        folder = self._folder if self._wants_stacks else None
        self._survey = Survey(asked, list(self.ranks.values()), monotonic(), folder)
        self._is_survey_own = is_own

    def _lose(self, rank: WatchedRank) -> None:
        rank.has_left = True
        self._save_ring(rank)
        reason = rank.exit_reason or "lost"
        is_lost = rank.exit_reason is None
        self._send(job.RankLeft(rank=rank.rank, is_lost=is_lost, reason=reason))

    def _go_back(self, rank: WatchedRank, message: local.WentBack) -> None:
        """A rank goes on from a checkpoint: it waits until what it did before is reported."""
        self._look(monotonic(), with_pulses=False)
        self._lookout.forget_steps(rank.rank)
        self._send(relayed(rank.rank, message, rank.phase))
        rank.connection.send(local.Taken(number=message.number))

    def _leave(self, rank: WatchedRank, reason: str) -> None:
        now_s = monotonic()
        self._look(now_s, with_pulses=True)
        # What it did last must be known before it counts as gone.
        self._decision.look(now_s)
        rank.has_left = True
        rank.exit_reason = rank.exit_reason or reason
        if rank.exit_reason in job.IN_ORDER:
            self._lifeline.forget(rank.rank)
        self._save_ring(rank)
        rank.connection.send(local.Farewell())
        self._send(job.RankLeft(rank=rank.rank, is_lost=False, reason=rank.exit_reason))

    def _tell_strangers(self, num: int) -> None:
        self._send(
            job.RankNote(
                rank=None,
                step=None,
                message=f"{num} caller(s) at the local socket of node {self._node}'s monitor were "
                "turned away: they are not of this run. Training is not affected.",
                evidence={"num_refused": num, "node": self._node},
            )
        )

    def _end(self, leave_s: float) -> None:
        term_at_s = monotonic() + leave_s
        self._ending = Ending(
            ranks=self.present, term_at_s=term_at_s, kill_at_s=term_at_s + self._grace_s
        )
        self._ending.begin()
        # A disk that hangs must not keep processes alive.
        self._rings.save_beside(self._ending.ranks)

    @singledispatchmethod
    def _on(self, message: Any) -> None:
        raise TypeError(f"no answer to a {type(message).__name__}")

    @_on.register
    def _(self, message: job.Hold) -> None:
        self._decision.on_hold(message)

    @_on.register
    def _(self, message: job.Schedule) -> None:
        self._decision.on_schedule(message)

    @_on.register
    def _(self, message: job.Release) -> None:
        self._decision.on_release(message.number)

    @_on.register
    def _(self, message: job.AskSurvey) -> None:
        self._begin_survey(message, is_own=False)

    @_on.register
    def _(self, message: job.End) -> None:
        if self._ending is None:
            self._end(message.leave_s)

    @_on.register
    def _(self, message: job.StateAnswer) -> None:
        if message.rank in self.ranks:
            answer = local.State(state=message.state, number=message.number)
            self.ranks[message.rank].connection.send(answer)

    @_on.register
    def _(self, message: job.RanksMet) -> None:
        self._meetings.on_met(message)

    @_on.register
    def _(self, message: job.Throttle) -> None:
        for rank in self.ranks.values():
            rank.block.words[Word.IO_PERCENT] = message.percent

    @_on.register
    def _(self, message: job.Beat) -> None:
        # Being heard is all that it is for.
        del message

    @_on.register
    def _(self, message: job.Dismissed) -> None:
        # The loop that owns this object ends when it sees this message.
        del message
