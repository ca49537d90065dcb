"""From the policy's word to what the ranks do: decisions, carried out and written down."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from slav1.breach import Breach
from slav1.coordinator import messages
from slav1.coordinator.agreement import Agreement, Effects, Hold, Outcome, Release, Result, Schedule
from slav1.coordinator.journal import Journal
from slav1.decision import Action, Decision

Send = Callable[[int, messages.FromCoordinator], None]
"""Sends a message to the node of that number."""

MAX_TRIES = 3
"""How often a decision is proposed that no node refused but one answered too late."""

MAX_RANKS_TOLD = 64
"""Ranks up to which each one's part in a decision is a line of its own in the ledger."""

_END_NUMBER = 1001


class Decisions:
    """Makes the decisions of one attempt and sees that they are carried out.

    While every rank can follow, all act at the end of one step. Once a rank is lost,
    hangs or never came, no step can be agreed on, and every process of the job is ended.
    """

    def __init__(self, journal: Journal, send: Send) -> None:
        """Starts with nothing decided, and without ranks that could agree."""
        self._journal = journal
        self._send = send
        self._agreement: Agreement | None = None
        self._is_anyone_lost = False
        self._silent_nodes: set[int] = set()
        self._too_late: list[Decision] = []
        self._num_tries = 0
        self._num_ranks = 0
        self._longest_s = 0.0
        self.ending: Decision | None = None
        """The decision to end all processes; None if there is none."""
        self.stopped: Decision | None = None
        """The scheduled decision that stands; None if there is none."""

    @property
    def is_deciding(self) -> bool:
        """Whether ranks wait, or will act soon: a time to look often."""
        return self._agreement is not None and self._agreement.current is not None

    def begin(self, ranks_by_node: Mapping[str, Sequence[int]]) -> None:
        """Every rank of the job is there: they can agree from now on."""
        self._num_ranks = sum(len(ranks) for ranks in ranks_by_node.values())
        self._agreement = Agreement(ranks_by_node)

    def decide(self, action: Action, breach: Breach, nodes: Iterable[int]) -> None:
        """Does what the policy says about a breach, unless the job is at its end already.

        Args:
            action: What every rank shall do; above ``LOG``.
            breach: The reason.
            nodes: Nodes that can be told to end their processes.
        """
        is_standstill = breach.rule in ("hang", "liveness")
        if self.ending is not None or (self.stopped is not None and not is_standstill):
            return
        can_follow = not (is_standstill or self._is_anyone_lost or self._silent_nodes)
        if self._agreement is None or not can_follow:
            self._end_job(action, breach, nodes)
            return
        self._num_tries = 1
        self._carry_out(
            self._agreement.propose(
                action, rule=breach.rule, rank=breach.rank, reason=breach.message
            )
        )

    def on_tick(self, now_s: float) -> None:
        """Time passes."""
        if self._agreement is not None:
            self._carry_out(self._agreement.on_tick(now_s))

    def on_acknowledged(self, node: int, message: messages.Acknowledged) -> None:
        """A node's ranks hold."""
        if self._agreement is not None:
            self._carry_out(self._agreement.on_acknowledge(str(node), message.number, message.step))

    def on_carried_out(self, message: messages.CarriedOut) -> None:
        """A rank did what was decided."""
        decision = None if self._agreement is None else self._agreement.current
        if self._agreement is None or decision is None or decision.number != message.number:
            return
        self._longest_s = max(self._longest_s, message.latency_s)
        if self._num_ranks <= MAX_RANKS_TOLD:
            self._tell_part(decision, message)
        self._carry_out(self._agreement.on_carried_out(message.rank, message.number))

    def _tell_part(self, decision: Decision, message: messages.CarriedOut) -> None:
        self._journal.action(
            decision,
            rank=message.rank,
            message=f"Rank {message.rank} carried out {_name(decision.action)} at the end of "
            f"step {message.step}.",
            evidence={"at_step": message.step, "latency_s": message.latency_s},
        )

    def on_rank_left(self, rank: int, *, is_lost: bool, in_order: bool) -> None:
        """A rank takes no further step.

        Args:
            rank: Global rank.
            is_lost: Whether it went without a goodbye.
            in_order: Whether its training ended as all others' does.
        """
        self._is_anyone_lost = self._is_anyone_lost or is_lost
        if self._agreement is not None:
            change = self._agreement.on_rank_done if in_order else self._agreement.on_rank_lost
            self._carry_out(change(rank))

    def on_node_silent(self, node: int) -> None:
        """A node's ranks hear of no decision while their monitor says nothing."""
        self._silent_nodes.add(node)

    def on_node_back(self, node: int) -> None:
        """A node that was silent is heard again."""
        self._silent_nodes.discard(node)

    def on_node_lost(self, node: int) -> None:
        """A node's ranks, whatever they do, act on no decision any more."""
        self._is_anyone_lost = True
        if self._agreement is not None:
            self._carry_out(self._agreement.on_node_lost(str(node)))

    def on_process_ended(self, rank: int | None) -> None:
        """A process is gone that the contract wanted to end."""
        assert self.ending is not None, "otherwise its end is a breach of liveness"
        self._journal.action(
            self.ending,
            rank=rank,
            message=f"The process of rank {rank} was ended.",
            evidence={},
        )

    def _end_job(self, action: Action, breach: Breach, nodes: Iterable[int]) -> None:
        """Some rank can't follow a decision any more: end all processes of the job."""
        self.ending = Decision(
            number=_END_NUMBER,
            action=action,
            rule=breach.rule,
            rank=breach.rank,
            reason=breach.message,
        )
        self._journal.decision(
            self.ending,
            f"Decision: {_name(action)}. A rank can't follow any more, so every process of the "
            f"job is ended. Reason: {breach.message}",
            {"how": "end_processes"},
        )
        leave_s = messages.LEAVE_S if breach.rule == "liveness" else 0.0
        for node in nodes:
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
        while self._too_late:
            self._try_again(self._too_late.pop())

    def _try_again(self, decision: Decision) -> None:
        """The reason has not gone away because a busy node answered too late."""
        if self._agreement is None or self._is_anyone_lost or self._num_tries >= MAX_TRIES:
            return
        self._num_tries += 1
        self._carry_out(
            self._agreement.propose(
                decision.action, rule=decision.rule, rank=decision.rank, reason=decision.reason
            )
        )

    def _schedule(self, effect: Schedule) -> None:
        decision = effect.decision
        assert decision.step is not None, "the agreement schedules what has a step"
        if self.stopped is None or self.stopped.number != decision.number:
            self.stopped = decision
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
                evidence={
                    "ranks": list(outcome.carried_out),
                    "longest_latency_s": self._longest_s,
                },
            )
            return
        if outcome.result is Result.WITHDRAWN:
            self._too_late.append(decision)
        is_over = outcome.result is not Result.OVERDUE
        if is_over and self.stopped is not None and self.stopped.number == decision.number:
            self.stopped = None
        self._journal.note(
            "notice",
            f"Decision {decision.number} ({_name(decision.action)}) is {outcome.result.value}: "
            f"{outcome.reason}",
            step=decision.step,
            rule=decision.rule,
            evidence={"missing": list(outcome.missing), "result": outcome.result.value},
        )


def _name(action: Action) -> str:
    return action.name.lower()
