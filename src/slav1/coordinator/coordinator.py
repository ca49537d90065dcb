"""The job's end of the line: all ranks' findings in, one decision out."""

import time
from collections.abc import Iterable
from functools import singledispatchmethod
from typing import Any, cast

from slav1.breach import Breach
from slav1.contract import Contract
from slav1.coordinator import messages, notices
from slav1.coordinator.adviser import Adviser
from slav1.coordinator.closing import last_word, write_end
from slav1.coordinator.decisions import Decisions, Send
from slav1.coordinator.findings import Findings
from slav1.coordinator.job_guard import JobGuard, ends_by_going_back
from slav1.coordinator.journal import Journal
from slav1.coordinator.meetings import Answer, Meetings
from slav1.coordinator.membership import PAUSE_S, Membership
from slav1.coordinator.recovery import Fault, Recovery
from slav1.coordinator.rollbacks import Rollbacks
from slav1.coordinator.standstill import Standstill
from slav1.coordinator.strangers import Strangers
from slav1.coordinator.throttling import Throttling
from slav1.decision import Action
from slav1.ledger import Kind
from slav1.policy import available

BEAT_EVERY_S = 1.0
"""Pause between two signs of life to the nodes, in seconds."""


class Coordinator:
    """Judges what no single node can judge, decides, and sees that it is done.

    Pure but for the journal it writes and the messages it sends: time is passed in.
    """

    def __init__(
        self,
        contract: Contract,
        *,
        world_size: int,
        num_nodes: int,
        journal: Journal,
        send: Send,
        earlier_rollbacks: Iterable[int] = (),
        earlier_fault: Fault | None = None,
        adviser: Adviser | None = None,
        origin: str = "",
    ) -> None:
        """Starts before any node has said hello.

        Args:
            contract: What is owed.
            world_size: Ranks of the job.
            num_nodes: Nodes of the job.
            journal: Where everything is written down.
            send: Sends a message to the node of that number.
            earlier_rollbacks: Steps at which earlier starts of this run were sent back.
            earlier_fault: What earlier starts have not come back from.
            adviser: Who asks the policy about findings; None without one.
            origin: Where the contract comes from, in sentences; empty if from code.
        """
        self._contract = contract
        self._journal = journal
        self._send = send
        self._now_s = 0.0
        self._ticked_at_s: float | None = None
        self._beat_at_s = float("-inf")
        self._membership = Membership(world_size=world_size, num_nodes=num_nodes)
        rollbacks = Rollbacks(contract.checkpoint, earlier_rollbacks)
        self._decisions = Decisions(journal, send, rollbacks)
        self._guard = JobGuard(contract, world_size)
        self._recovery = Recovery(earlier_fault)
        self._adviser = adviser
        self._findings = Findings(
            contract,
            journal=journal,
            decisions=self._decisions,
            throttling=Throttling(journal, send),
            membership=self._membership,
            rollbacks=rollbacks,
            adviser=adviser,
        )
        self._standstill = Standstill(contract, self._membership, send)
        self._meetings = Meetings(self._membership, journal)
        self._strangers = Strangers()
        self._wanted: set[int | None] = set()
        self._num_batches: dict[int, int | None] = {}
        self._lost: set[int] = set()
        self._lost_nodes: set[int] = set()
        self._exception: messages.FirstException | None = None
        self._is_orderly = True
        self.is_finished = False
        """Whether every node is done and the verdict is written."""
        notices.started(
            journal, contract.level_name, world_size=world_size, num_nodes=num_nodes, origin=origin
        )

    def on_message(self, node: int, message: messages.FromNode, now_s: float) -> None:
        """Takes in what the monitor of ``node`` says; nothing after the end.

        Raises:
            ValueError: If the job has no such node.
        """
        if not 0 <= node < self._membership.num_nodes:
            raise ValueError(f"node {node} spoke, but the job has {self._membership.num_nodes}")
        if self.is_finished:
            return
        self._now_s = now_s
        if self._membership.hear(node, now_s):
            self._decisions.on_node_back(node)
            notices.node_back(self._journal, node)
        self._on(message, node)
        self._finish_if_over()

    def on_tick(self, now_s: float) -> None:
        """Lets time pass: looks, limits, silent nodes."""
        if self.is_finished:
            return
        if self._ticked_at_s is not None and now_s - self._ticked_at_s > PAUSE_S:
            self._membership.restart_clocks(now_s)
        self._now_s = self._ticked_at_s = now_s
        self._decisions.on_tick(now_s)
        self._findings.on_tick(now_s)
        self._judge_standstill(self._standstill.judge(now_s))
        self._look_if_silent()
        self._answer_state_requests()
        self._answer_meetings(self._meetings.on_tick(now_s))
        for node in self._membership.newly_silent(now_s):
            self._decisions.on_node_silent(node)
            notices.node_silent(self._journal, node, self._membership.ranks_of(node))
        if missing := self._membership.newly_missing(now_s):
            notices.ranks_missing(self._journal, missing)
        if num_strangers := self._strangers.take_burst(now_s):
            notices.strangers(self._journal, num_strangers)
        if now_s - self._beat_at_s >= BEAT_EVERY_S:
            self._beat_at_s = now_s
            for node in self._membership.listening:
                self._send(node, messages.Beat())
        self._finish_if_over()

    @property
    def is_waiting_for_policy(self) -> bool:
        """Whether a finding waits for the policy's answer."""
        return self._findings.are_waiting

    def on_policy(self, now_s: float) -> None:
        """The policy may have answered, or be late."""
        self._now_s = now_s
        self._findings.on_answers(now_s)
        self._answer_state_requests()
        self._finish_if_over()

    def on_strangers(self, num_turned_away: int) -> None:
        """Callers knocked who are not of this job."""
        self._strangers.add(num_turned_away, self._now_s)

    def on_trouble(self, message: str) -> None:
        """Something went wrong inside this monitor that it can go on with."""
        if not self.is_finished:
            self._journal.note("notice", message)

    @singledispatchmethod
    def _on(self, message: Any, node: int) -> None:
        raise TypeError(f"no answer to a {type(message).__name__}")

    @_on.register
    def _(self, message: messages.NodeHello, node: int) -> None:
        del message
        self._decisions.end_if_ending(node)

    @_on.register
    def _(self, message: messages.RankJoined, node: int) -> None:
        self._decisions.end_if_ending(node)
        membership = self._membership
        was_complete = membership.is_complete
        membership.join(message.rank, node, self._now_s, can_roll_back=message.can_roll_back)
        if membership.is_complete and not was_complete:
            self._decisions.begin(membership.ranks_by_node())

    @_on.register
    def _(self, message: messages.StateRestored, node: int) -> None:
        del node
        notices.unusable(self._journal, self._guard.restore(message.state))

    @_on.register
    def _(self, message: messages.RankWentBack, node: int) -> None:
        del node
        rank, step = message.rank, message.to_step
        self._findings.settle()
        self._decisions.on_rank_back(rank, step)
        is_first, unusable = self._guard.on_rank_back(rank, step, message.state)
        if is_first:
            # Steps come again, and may give rise to the same wish again.
            self._wanted.clear()
        notices.unusable(self._journal, unusable)
        if (fault := self._findings.take_fault()) is not None:
            self._recovery.begin(fault)

        def is_over(rule: str, of_rank: int | None) -> bool:
            detector = self._contract.rules[rule].detector
            return ends_by_going_back(detector, is_first=is_first, is_own=of_rank == rank)

        self._journal.end_incidents(is_over, step, f"Training went back to step {step}.")

    @_on.register
    def _(self, message: messages.RankWants, node: int) -> None:
        del node
        if message.step in self._wanted:
            # Every rank may ask; one answer is for all.
            return
        self._wanted.add(message.step)
        onset = message.step if message.onset_step is None else message.onset_step
        breach = notices.wanted(message.rank, message.step, message.reason, onset)
        action = available(Action.ROLLBACK, can_roll_back=self._membership.can_roll_back)
        self._decisions.decide(action, breach, self._membership.listening)

    @_on.register
    def _(self, message: messages.RankFacts, node: int) -> None:
        del node
        self._num_batches[message.rank] = message.num_batches
        known = {rank: num for rank, num in self._num_batches.items() if num is not None}
        is_complete = len(self._num_batches) == self._membership.world_size
        if is_complete and len(set(known.values())) > 1:
            notices.uneven_batches(self._journal, known)
        if len(known) == self._membership.world_size:
            self._standstill.expect_uneven_batches(is_likely=len(set(known.values())) > 1)

    @_on.register
    def _(self, message: messages.RankLeft, node: int) -> None:
        del node
        self._standstill.forget(message.rank)
        if message.is_lost:
            self._lost.add(message.rank)
        in_order = message.reason in messages.IN_ORDER
        self._is_orderly = self._is_orderly and in_order
        self._decisions.on_rank_left(message.rank, is_lost=message.is_lost, in_order=in_order)
        how = "is lost" if message.is_lost else f"has left ({message.reason})"
        self._answer_meetings(self._meetings.on_rank_gone(message.rank, how))

    @_on.register
    def _(self, message: messages.Report, node: int) -> None:
        del node
        for plain in message.findings:
            self._find(messages.unpack_breach(plain))
        if self._adviser is not None:
            self._adviser.on_samples(message.samples, self._now_s)
        before = self._guard.newest_step
        self._findings.judge_all(self._guard.observe(message.samples), self._now_s)
        if self._guard.newest_step > before:
            self._tell_if_recovered(before, self._guard.newest_step)
        self._answer_state_requests()

    @_on.register
    def _(self, message: messages.FirstException, node: int) -> None:
        del node
        is_first = self._exception is None
        self._exception = self._exception or message
        self._journal.note(
            "first_exception" if is_first else "notice",
            f"Rank {message.rank} leaves training by an exception: {message.error}",
            rank=message.rank,
            step=message.step,
            phase=message.phase,
        )

    @_on.register
    def _(self, message: messages.RankNote, node: int) -> None:
        del node
        self._journal.note(
            cast("Kind", message.kind),
            message.message,
            rank=message.rank,
            step=message.step,
            rule=message.rule,
            evidence=message.evidence,
        )
        self._findings.on_note(message, self._guard.on_note(message, self._now_s), self._now_s)

    @_on.register
    def _(self, message: messages.RankReplicas, node: int) -> None:
        del node
        notices.copies(self._journal, self._guard.on_replicas(message))

    @_on.register
    def _(self, message: messages.RankDigests, node: int) -> None:
        del node
        told, found = self._guard.on_digests(message)
        notices.copies(self._journal, told)
        self._findings.judge_all(found, self._now_s)

    @_on.register
    def _(self, message: messages.Survey, node: int) -> None:
        self._judge_standstill(self._standstill.on_survey(node, message, self._now_s))

    @_on.register
    def _(self, message: messages.Acknowledged, node: int) -> None:
        self._decisions.on_acknowledged(node, message)

    @_on.register
    def _(self, message: messages.CarriedOut, node: int) -> None:
        del node
        self._decisions.on_carried_out(message)

    @_on.register
    def _(self, message: messages.StateAsked, node: int) -> None:
        self._guard.ask(node, message, self._now_s)
        self._answer_state_requests()

    @_on.register
    def _(self, message: messages.RankMeets, node: int) -> None:
        self._answer_meetings(self._meetings.add(node, message, self._now_s))

    @_on.register
    def _(self, message: messages.NodeDone, node: int) -> None:
        self._membership.done[node] = message

    def _tell_if_recovered(self, before: int, newest: int) -> None:
        recovered = self._recovery.on_steps(before, newest, time.time_ns())
        if recovered is not None:
            notices.recovered(self._journal, recovered)

    def _answer_state_requests(self) -> None:
        if self._findings.are_waiting:
            # Whoever saves must know first what its last steps lead to.
            return
        for node, answer in self._guard.answers(self._now_s):
            self._send(node, answer)

    def _answer_meetings(self, answers: Iterable[Answer]) -> None:
        for nodes, message in answers:
            for node in nodes:
                self._send(node, message)

    def _find(self, breach: Breach) -> None:
        """One finding: surveyed if silence alone can't name a rank, judged otherwise."""
        if breach.rule != "hang":
            self._findings.judge(breach, self._now_s)
            return
        self._findings.judge_all(self._standstill.on_finding(breach), self._now_s)
        self._look_if_silent()

    def _judge_standstill(self, breaches: Iterable[Breach]) -> None:
        # Once all processes are being ended, where they stand says nothing any more.
        if self._decisions.ending is None:
            self._findings.judge_all(breaches, self._now_s)

    def _look_if_silent(self) -> None:
        """Looks at all ranks while any of them makes no progress."""
        if self._decisions.ending is not None or self._findings.are_waiting:
            return
        if self._standstill.is_overdue:
            # Whoever waits so long while a node says nothing waits for that node.
            for node in sorted(self._membership.silent - self._lost_nodes):
                self._lose_node(node)
        self._standstill.look(self._now_s)

    def _lose_node(self, node: int) -> None:
        self._lost_nodes.add(node)
        ranks = self._membership.ranks_of(node)
        self._lost.update(ranks)
        self._decisions.on_node_lost(node)
        for rank in ranks:
            self._answer_meetings(self._meetings.on_rank_gone(rank, "is lost with its node"))
        breach = notices.node_lost(node, ranks)
        if self._decisions.ending is not None:
            self._journal.note("notice", breach.message, evidence=breach.evidence)
        elif "liveness" in self._contract.rules:
            self._findings.judge(breach, self._now_s)

    def _finish_if_over(self) -> None:
        if self.is_finished or not self._membership.is_over or self._findings.are_waiting:
            return
        self.is_finished = True
        self._findings.close()
        if not self._is_orderly:
            # Silent to the end while others failed: that was more than a mute monitor.
            for node in sorted(self._membership.silent - self._lost_nodes):
                self._lose_node(node)
        if num_strangers := self._strangers.take_burst(self._now_s, is_last=True):
            notices.strangers(self._journal, num_strangers)
        word = last_word(
            self._decisions, self._exception, self._lost, is_complete=self._membership.is_complete
        )
        done = self._membership.done
        write_end(self._journal, self._contract, self._guard, done.values(), word)
        for node in done:
            self._send(node, messages.Dismissed())
