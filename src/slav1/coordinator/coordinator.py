"""The job's end of the line: all ranks' findings in, one decision out."""

from collections.abc import Callable
from functools import singledispatchmethod
from typing import Any

from slav1.breach import Breach, Status
from slav1.contract import Contract, Mode
from slav1.coordinator import messages
from slav1.coordinator.agreement import Agreement, Effects, Hold, Outcome, Release, Result, Schedule
from slav1.coordinator.journal import Journal
from slav1.coordinator.rounds import Rounds
from slav1.coordinator.stall import Stall
from slav1.decision import Action, Decision
from slav1.guard import Guard
from slav1.policy import judge
from slav1.sample import Round

NODE_SILENCE_S = 10.0
"""Silence after which a node's monitor counts as lost, in seconds; it reports each second."""

SURVEY_LIMIT_S = 1.0
"""How long an answer to a survey is waited for, in seconds."""

_END_RULES_LEAVE_S = 2.0
_DEFAULT_COMPILE_LIMIT_S = 600.0


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
        send: Callable[[int, messages.FromCoordinator], None],
    ) -> None:
        """Starts before any node has said hello.

        Args:
            contract: What is owed.
            world_size: Ranks of the job.
            num_nodes: Nodes of the job.
            journal: Where everything is written down.
            send: Sends a message to the node of that number.
        """
        self._contract = contract
        self._world_size = world_size
        self._num_nodes = num_nodes
        self._journal = journal
        self._send = send
        self._now_s = 0.0
        self._rounds = Rounds(world_size)
        self._guard = Guard(
            {
                name: rule.detector
                for name, rule in contract.rules.items()
                if Round in rule.detector.WATCHES and rule.mode is not Mode.OFF
            }
        )
        hang = contract.rules.get("hang")
        limit_s = getattr(hang and hang.detector, "first_step_limit_s", _DEFAULT_COMPILE_LIMIT_S)
        self._stall = Stall(limit_s)
        self._nodes_of_ranks: dict[int, int] = {}
        self._num_batches: dict[int, int | None] = {}
        self._lost: set[int] = set()
        self._heard_at_s: dict[int, float] = {}
        self._done_nodes: dict[int, messages.NodeDone | None] = {}
        self._agreement: Agreement | None = None
        self._ending: Decision | None = None
        self._stopped: Decision | None = None
        self._num_own_decisions = 0
        self._exception: messages.FirstException | None = None
        journal.note(
            "start",
            f"Watching {world_size} rank(s) on {num_nodes} node(s) by contract "
            f"{contract.level_name}.",
            evidence={"world_size": world_size, "num_nodes": num_nodes},
        )
        self._survey_number = 0
        self._survey_at_s = 0.0
        self._surveyed: dict[int, list[messages.Position]] = {}

    @property
    def is_finished(self) -> bool:
        """Whether every node is done and the verdict is written."""
        return len(self._done_nodes) == self._num_nodes

    @property
    def is_deciding(self) -> bool:
        """Whether ranks wait, or will act soon: a time to look often."""
        return self._agreement is not None and self._agreement.current is not None

    def on_message(self, node: int, message: messages.FromNode, now_s: float) -> None:
        """Takes in what the monitor of ``node`` says."""
        self._now_s = now_s
        self._heard_at_s[node] = now_s
        self._on(message, node)

    def on_tick(self, now_s: float) -> None:
        """Lets time pass: looks, limits, lost nodes."""
        self._now_s = now_s
        if self._agreement is not None:
            self._carry_out(self._agreement.on_tick(now_s))
        is_surveying = bool(self._surveyed) or self._survey_at_s > 0.0
        if is_surveying and now_s - self._survey_at_s > SURVEY_LIMIT_S:
            self._judge_survey()
        elif not is_surveying and self._ending is None and self._stall.wants_look(now_s):
            self._ask_survey()
        for node, heard_at_s in self._heard_at_s.items():
            if node not in self._done_nodes and now_s - heard_at_s > NODE_SILENCE_S:
                self._lose_node(node)

    def on_stranger(self, num_turned_away: int) -> None:
        """Somebody who is not of this job knocked."""
        self._journal.note(
            "notice",
            f"{num_turned_away} connection(s) to the coordinator's port were refused: the "
            "caller has no key of this job. Training is not affected.",
            evidence={"num_refused": num_turned_away},
        )

    @singledispatchmethod
    def _on(self, message: Any, node: int) -> None:
        raise TypeError(f"no answer to a {type(message).__name__}")

    @_on.register
    def _(self, message: messages.NodeHello, node: int) -> None:
        # Being heard is all that it is for.
        del message, node

    @_on.register
    def _(self, message: messages.RankJoined, node: int) -> None:
        self._nodes_of_ranks[message.rank] = node
        if len(self._nodes_of_ranks) == self._world_size:
            ranks: dict[str, list[int]] = {str(number): [] for number in range(self._num_nodes)}
            for rank, of_node in self._nodes_of_ranks.items():
                ranks[str(of_node)].append(rank)
            self._agreement = Agreement(ranks)

    @_on.register
    def _(self, message: messages.StateRestored, node: int) -> None:
        del node
        for name in self._guard.load_state_dict(message.state):
            self._journal.note(
                "notice",
                f"The saved memory of rule {name} is not of this version; it starts afresh.",
                rule=name,
            )

    @_on.register
    def _(self, message: messages.RankFacts, node: int) -> None:
        del node
        self._num_batches[message.rank] = message.num_batches
        known = {rank: num for rank, num in self._num_batches.items() if num is not None}
        if len(self._num_batches) == self._world_size and len(set(known.values())) > 1:
            listed = ", ".join(f"rank {rank}: {known[rank]}" for rank in sorted(known))
            self._journal.note(
                "notice",
                f"The ranks have different numbers of batches ({listed}): those with more will "
                "wait for the others at the end of the epoch, for ever.",
                evidence={"num_batches": {str(rank): num for rank, num in known.items()}},
            )

    @_on.register
    def _(self, message: messages.RankLeft, node: int) -> None:
        del node
        self._stall.forget(message.rank)
        if message.is_lost:
            self._lost.add(message.rank)
        if self._agreement is not None:
            left_in_order = message.reason == "finished"
            change = self._agreement.on_rank_done if left_in_order else self._agreement.on_rank_lost
            self._carry_out(change(message.rank))

    @_on.register
    def _(self, message: messages.Report, node: int) -> None:
        del node
        for plain in message.findings:
            self._find(messages.unpack_breach(plain))
        for sample in message.samples:
            complete = self._rounds.add(sample)
            if complete is not None:
                for breach in self._guard.observe(complete):
                    self._find(breach)

    @_on.register
    def _(self, message: messages.FirstException, node: int) -> None:
        del node
        kind = "notice" if self._exception is not None else "first_exception"
        self._exception = self._exception or message
        self._journal.note(
            "first_exception" if kind == "first_exception" else "notice",
            f"Rank {message.rank} leaves training by an exception: {message.error}",
            rank=message.rank,
            step=message.step,
            phase=message.phase,
        )

    @_on.register
    def _(self, message: messages.RankNote, node: int) -> None:
        del node
        self._journal.note(
            "notice",
            message.message,
            rank=message.rank,
            step=message.step,
            evidence=message.evidence,
        )

    @_on.register
    def _(self, message: messages.Survey, node: int) -> None:
        if message.number == self._survey_number:
            self._surveyed[node] = message.positions
            if len(self._surveyed) >= len(set(self._heard_at_s) - set(self._done_nodes)):
                self._judge_survey()

    @_on.register
    def _(self, message: messages.Acknowledged, node: int) -> None:
        if self._agreement is not None:
            self._carry_out(self._agreement.on_acknowledge(str(node), message.number, message.step))

    @_on.register
    def _(self, message: messages.CarriedOut, node: int) -> None:
        del node
        if self._agreement is None or self._agreement.current is None:
            return
        decision = self._agreement.current
        self._journal.action(
            decision,
            rank=message.rank,
            message=f"Rank {message.rank} carried out {_name(decision.action)} at the end of "
            f"step {message.step}.",
            evidence={"at_step": message.step, "latency_s": message.latency_s},
        )
        self._carry_out(self._agreement.on_carried_out(message.rank, message.number))

    @_on.register
    def _(self, message: messages.StateAsked, node: int) -> None:
        answer = messages.StateAnswer(rank=message.rank, state=self._guard.state_dict())
        self._send(node, answer)

    @_on.register
    def _(self, message: messages.NodeDone, node: int) -> None:
        self._done_nodes[node] = message
        if self.is_finished:
            self._finish()

    def _find(self, breach: Breach) -> None:
        """One finding: surveyed if silence alone can't name a rank, judged otherwise."""
        if breach.rule == "hang":
            over = self._stall.on_finding(breach)
            if over is not None:
                self._judge(over)
            elif (
                self._ending is None
                and not self._survey_at_s
                and self._stall.wants_look(self._now_s)
            ):
                self._ask_survey()
            return
        self._judge(breach)

    def _judge(self, breach: Breach) -> None:
        if self._ending is not None and breach.rule == "liveness":
            self._journal.action(
                self._ending,
                rank=breach.rank,
                message=f"The process of rank {breach.rank} was ended.",
                evidence={},
            )
            return
        rule = self._contract.rules[breach.rule]
        verdict = judge(breach, rule)
        self._journal.breach(breach, rule, verdict)
        if breach.status is Status.BREACH and verdict.action > Action.LOG:
            self._decide(verdict.action, breach)

    def _decide(self, action: Action, breach: Breach) -> None:
        if self._ending is not None or self._stopped is not None:
            return
        if self._agreement is None or self._lost or breach.rule in ("hang", "liveness"):
            self._end_job(action, breach)
            return
        reason = breach.message
        self._carry_out(
            self._agreement.propose(action, rule=breach.rule, rank=breach.rank, reason=reason)
        )

    def _end_job(self, action: Action, breach: Breach) -> None:
        """Some rank can't follow a decision any more: end all processes of the job."""
        self._num_own_decisions += 1
        decision = Decision(
            number=1000 + self._num_own_decisions,
            action=action,
            rule=breach.rule,
            rank=breach.rank,
            reason=breach.message,
        )
        self._ending = decision
        self._journal.decision(
            decision,
            f"Decision: {_name(action)}. A rank can't follow any more, so every process of the "
            f"job is ended. Reason: {breach.message}",
            {"how": "end_processes"},
        )
        leave_s = _END_RULES_LEAVE_S if breach.rule == "liveness" else 0.0
        for node in self._heard_at_s:
            self._send(node, messages.End(reason=breach.message, leave_s=leave_s))

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Hold):
                self._send(int(effect.node), messages.Hold(number=effect.number))
            elif isinstance(effect, Schedule):
                self._schedule(effect)
            elif isinstance(effect, Release):
                self._send(int(effect.node), messages.Release(number=effect.number))
            else:
                self._conclude(effect)

    def _schedule(self, effect: Schedule) -> None:
        decision = effect.decision
        assert decision.step is not None
        if self._stopped is None or self._stopped.number != decision.number:
            self._stopped = decision
            self._journal.decision(
                decision,
                f"Decision {decision.number}: {_name(decision.action)} on all ranks at the end "
                f"of step {decision.step}. Reason: {decision.reason}",
                {"how": "scheduled"},
            )
        message = messages.Schedule(
            number=decision.number, step=decision.step, action=int(decision.action)
        )
        self._send(int(effect.node), message)

    def _conclude(self, outcome: Outcome) -> None:
        decision = outcome.decision
        if outcome.result is Result.CARRIED_OUT:
            self._journal.action(
                decision,
                rank=None,
                message=f"All {len(outcome.carried_out)} ranks carried out "
                f"{_name(decision.action)} at the end of step {decision.step}.",
                evidence={"ranks": list(outcome.carried_out)},
            )
            return
        if self._stopped is not None and self._stopped.number == decision.number:
            self._stopped = None
        self._journal.note(
            "notice",
            f"Decision {decision.number} ({_name(decision.action)}) is {outcome.result.value}: "
            f"{outcome.reason}",
            step=decision.step,
            rule=decision.rule,
            evidence={"missing": list(outcome.missing), "result": outcome.result.value},
        )

    def _ask_survey(self) -> None:
        self._survey_number += 1
        self._survey_at_s = self._now_s
        self._surveyed = {}
        for node in set(self._heard_at_s) - set(self._done_nodes):
            self._send(node, messages.AskSurvey(number=self._survey_number))

    def _judge_survey(self) -> None:
        positions = [position for part in self._surveyed.values() for position in part]
        self._surveyed, self._survey_at_s = {}, 0.0
        breach = self._stall.judge(positions) if positions else None
        if breach is not None:
            self._judge(breach)

    def _lose_node(self, node: int) -> None:
        self._done_nodes[node] = None
        ranks = sorted(rank for rank, of_node in self._nodes_of_ranks.items() if of_node == node)
        self._lost.update(ranks)
        if self._agreement is not None:
            self._carry_out(self._agreement.on_node_lost(str(node)))
        breach = Breach(
            rule="liveness",
            rank=ranks[0] if ranks else None,
            step=None,
            statistic=NODE_SILENCE_S,
            limit=NODE_SILENCE_S,
            unit="s",
            message=f"The monitor of node {node} (ranks {ranks}) has said nothing for "
            f"{NODE_SILENCE_S:g} s: the node or its network is gone.",
            evidence={"node": node, "ranks": list(ranks)},
        )
        if "liveness" in self._contract.rules:
            self._judge(breach)
        if self.is_finished:
            self._finish()

    def _finish(self) -> None:
        num_seen = dict(self._guard.num_seen)
        num_lost = 0
        for done in self._done_nodes.values():
            if done is not None:
                num_lost += done.num_lost
                for name, count in done.num_seen.items():
                    num_seen[name] = num_seen.get(name, 0) + count
        if num_lost:
            self._journal.note(
                "notice",
                f"{num_lost} steps were overwritten before the monitor could read them.",
                evidence={"num_lost": num_lost},
            )
        for name, rule in self._contract.rules.items():
            if rule.mode is not Mode.OFF:
                needed = rule.detector.NUM_SAMPLES_NEEDED
                self._journal.note(
                    "verdict",
                    f"Rule {name} saw {num_seen.get(name, 0)} samples; it needs {needed}.",
                    rule=name,
                    evidence={"num_samples": num_seen.get(name, 0), "num_needed": needed},
                )
        self._journal.note("end", self._last_word())
        self._journal.close()
        for node, done in self._done_nodes.items():
            if done is not None:
                self._send(node, messages.Dismissed())

    def _last_word(self) -> str:
        if self._ending is not None:
            return f"The contract ended the job: {self._ending.reason}"
        if self._stopped is not None:
            return f"The contract stopped training at step {self._stopped.step}: {self._stopped.reason}"
        if self._exception is not None:
            return f"Training ended by an exception on rank {self._exception.rank}."
        if self._lost:
            return f"Training ended after ranks {sorted(self._lost)} were lost."
        if len(self._nodes_of_ranks) < self._world_size:
            return "The run ended before every rank had joined."
        return "Training ended."


def _name(action: Action) -> str:
    return action.name.lower()
