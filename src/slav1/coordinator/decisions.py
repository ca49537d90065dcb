"""From the policy's word to what the ranks do: decisions, carried out and written down."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from slav1.breach import Breach
from slav1.coordinator import messages, notices
from slav1.coordinator.agreement import Agreement, Effects, Hold, Outcome, Release, Result, Schedule
from slav1.coordinator.journal import Journal
from slav1.coordinator.rollbacks import Rollbacks, bad_steps
from slav1.decision import Action, Decision

Send = Callable[[int, messages.FromCoordinator], None]
"""Sends a message to the node of that number."""

MAX_TRIES = 3
"""How often a decision is proposed that no node refused but one answered too late."""

MAX_RANKS_TOLD = 64
"""Ranks up to which each one's part in a decision is a line of its own in the ledger."""

_END_NUMBER = 1001


class _Wanted(NamedTuple):
    """What the policy says about a breach that is not acted on yet."""

    action: Action
    breach: Breach
    nodes: tuple[int, ...]


class Decisions:
    """Makes the decisions of one attempt and sees that they are carried out.

    While every rank can follow, all act at the end of one step. Once a rank is lost,
    hangs or never came, no step can be agreed on: every process of the job is ended then,
    but for an action that would let training go on, which is left out.
    """

    def __init__(self, journal: Journal, send: Send, rollbacks: Rollbacks) -> None:
        """Starts with nothing decided, and without ranks that could agree.

        Args:
            journal: Where decisions and what became of them are written.
            send: Sends a message to the node of that number.
            rollbacks: How often the run may go back.
        """
        self._journal = journal
        self._send = send
        self._rollbacks = rollbacks
        self._agreement: Agreement | None = None
        self._is_anyone_lost = False
        self._silent_nodes: set[int] = set()
        self._too_late: list[Decision] = []
        self._after_this: list[_Wanted] = []
        self._num_tries = 0
        self._num_ranks = 0
        self._nodes: tuple[int, ...] = ()
        self._longest_s = 0.0
        self._standing: Decision | None = None
        self._back: dict[int, int] = {}
        self._later: _Wanted | None = None
        self._end: messages.End | None = None
        self.ending: Decision | None = None
        """The decision to end all processes; None if there is none."""

    @property
    def stopped(self) -> Decision | None:
        """The scheduled decision that ends training; None if there is none."""
        standing = self._standing
        return None if standing is None or standing.action < Action.STOP else standing

    def begin(self, ranks_by_node: Mapping[str, Sequence[int]]) -> None:
        """Every rank of the job is there: they can agree from now on."""
        self._num_ranks = sum(len(ranks) for ranks in ranks_by_node.values())
        self._nodes = tuple(int(node) for node in ranks_by_node)
        self._agreement = Agreement(ranks_by_node)

    def decide(self, action: Action, breach: Breach, nodes: Iterable[int]) -> None:
        """Does what the policy says about a breach, unless the job is at its end already.

        Args:
            action: What every rank shall do; above ``LOG``.
            breach: The reason.
            nodes: Nodes that can be told to end their processes.
        """
        is_standstill = breach.rule in ("hang", "liveness")
        if self.ending is not None:
            return
        if self._standing is not None and action <= self._standing.action and not is_standstill:
            is_other = action is not self._standing.action
            if self._is_news(breach) or (is_other and self._standing.action < Action.ROLLBACK):
                self._keep_for_later(_Wanted(action, breach, tuple(nodes)))
            return
        reason = breach.message
        if action is Action.ROLLBACK and (too_many := self._rollbacks.why_not(breach.step)):
            action, reason = Action.STOP, f"{reason} {too_many}"
        can_follow = not (is_standstill or self._is_anyone_lost or self._silent_nodes)
        if self._agreement is None or not can_follow:
            if action < Action.ROLLBACK and not is_standstill:
                # What lets training go on is not worth its end.
                notices.left_out(self._journal, _name(action), breach)
                return
            # Whoever can't agree on a step can't go back together either.
            self._end_job(Action.STOP if action is Action.ROLLBACK else action, breach, nodes)
            return
        self._num_tries = 1
        onset_step, alarm_step = bad_steps(breach)
        self._carry_out(
            self._agreement.propose(
                action,
                rule=breach.rule,
                rank=breach.rank,
                reason=reason,
                onset_step=onset_step,
                alarm_step=alarm_step,
            )
        )

    def on_rank_back(self, rank: int, to_step: int) -> None:
        """A rank has gone back to a checkpoint and is about to go on from it.

        Args:
            rank: Global rank.
            to_step: Last step that the checkpoint contains.
        """
        self._back[rank] = to_step

    def _is_news(self, breach: Breach) -> bool:
        """Whether a breach is from after a rollback that is still being carried out."""
        if breach.rank is None:
            return len(self._back) == self._num_ranks
        return breach.rank in self._back

    def _stands(self, decision: Decision) -> bool:
        return self._standing is not None and self._standing.number == decision.number

    def _keep_for_later(self, wanted: "_Wanted") -> None:
        if self._later is None or wanted.action > self._later.action:
            self._later = wanted

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
        did = f"carried out {_name(decision.action)}"
        if decision.action is Action.ROLLBACK and message.rank not in self._back:
            did = "had no way back and stopped"
        self._journal.action(
            decision,
            rank=message.rank,
            message=f"Rank {message.rank} {did} at the end of step {message.step}.",
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
        self.end_if_ending(node)

    def end_if_ending(self, node: int) -> None:
        """A node is heard that may not know that the job is being ended."""
        if self._end is not None:
            self._send(node, self._end)

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
        self._end = messages.End(reason=breach.message, leave_s=leave_s)
        for node in nodes:
            self._send(node, self._end)

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
        while self._after_this:
            self.decide(*self._after_this.pop())

    def _try_again(self, decision: Decision) -> None:
        """The reason has not gone away because a busy node answered too late."""
        if self._agreement is None or self._is_anyone_lost or self._num_tries >= MAX_TRIES:
            return
        self._num_tries += 1
        self._carry_out(
            self._agreement.propose(
                decision.action,
                rule=decision.rule,
                rank=decision.rank,
                reason=decision.reason,
                onset_step=decision.onset_step,
                alarm_step=decision.alarm_step,
            )
        )

    def _schedule(self, effect: Schedule) -> None:
        decision = effect.decision
        assert decision.step is not None, "the agreement schedules what has a step"
        if self._standing is None or self._standing.number != decision.number:
            self._standing, self._later = decision, None
            self._longest_s = 0.0
            self._back.clear()
            if decision.action is Action.ROLLBACK:
                self._rollbacks.add(decision.step)
            self._journal.decision(
                decision,
                f"Decision {decision.number}: {_name(decision.action)} on all ranks at the end "
                f"of step {decision.step}. Reason: {decision.reason}",
                {
                    "how": "scheduled",
                    "onset_step": decision.onset_step,
                    "alarm_step": decision.alarm_step,
                },
            )
        message = messages.Schedule(
            number=decision.number,
            step=decision.step,
            action=int(decision.action),
            rule=decision.rule,
            rank=decision.rank,
            reason=decision.reason,
            onset_step=decision.onset_step,
            alarm_step=decision.alarm_step,
        )
        self._send(int(effect.node), message)

    def _conclude(self, outcome: Outcome) -> None:
        decision = outcome.decision
        if outcome.result is Result.CARRIED_OUT:
            has_stopped = decision.action is Action.ROLLBACK and not self._back
            did = "stopped" if has_stopped else f"carried out {_name(decision.action)}"
            self._journal.action(
                decision,
                rank=None,
                message=f"All {len(outcome.carried_out)} ranks {did} at the end of step "
                f"{decision.step}.",
                evidence={
                    "ranks": list(outcome.carried_out),
                    "longest_latency_s": self._longest_s,
                },
            )
            if decision.action is Action.ROLLBACK:
                self._go_on(decision, outcome.carried_out)
            elif decision.action < Action.ROLLBACK and self._stands(decision):
                self._standing = None
                self._do_later()
            return
        if outcome.result is Result.WITHDRAWN:
            self._too_late.append(decision)
        is_over = outcome.result is not Result.OVERDUE
        if is_over and self._stands(decision):
            self._standing = None
        self._journal.note(
            "notice",
            f"Decision {decision.number} ({_name(decision.action)}) is {outcome.result.value}: "
            f"{outcome.reason}",
            step=decision.step,
            rule=decision.rule,
            evidence={"missing": list(outcome.missing), "result": outcome.result.value},
        )

    def _go_on(self, decision: Decision, ranks: Sequence[int]) -> None:
        """Every rank has said whether it went back: training goes on, or it can't."""
        steps = {self._back.get(rank) for rank in ranks}
        if steps == {None}:
            self._standing = replace(decision, action=Action.STOP)
            self._journal.note(
                "notice",
                f"No rank went back after decision {decision.number}: all stop instead.",
                step=decision.step,
                rule=decision.rule,
                evidence={"decision": decision.number},
            )
            return
        self._standing = None
        if len(steps) > 1:
            self._later = _Wanted(Action.STOP, _split(decision, self._back, ranks), self._nodes)
        else:
            self._tell_restored(decision, len(ranks), self._back[ranks[0]])
        self._do_later()

    def _do_later(self) -> None:
        """Training goes on: what was found meanwhile is done after this."""
        later, self._later = self._later, None
        if later is not None:
            self._after_this.append(later)

    def _tell_restored(self, decision: Decision, num_ranks: int, to_step: int) -> None:
        self._journal.note(
            "restored",
            f"All {num_ranks} ranks went back to step {to_step}: training goes on with step "
            f"{to_step + 1}, {self._longest_s:.2f} s after the decision.",
            step=to_step,
            rule=decision.rule,
            evidence={
                "how": "rollback",
                "decision": decision.number,
                "from_step": decision.step,
                "to_step": to_step,
                "onset_step": decision.onset_step,
                "alarm_step": decision.alarm_step,
                "rollback_s": self._longest_s,
            },
        )


def _split(decision: Decision, back: Mapping[int, int], ranks: Sequence[int]) -> Breach:
    """The breach of ranks that went back to different steps: they are no job any more."""
    told = ", ".join(f"rank {rank}: {back.get(rank, 'nowhere')}" for rank in ranks)
    return Breach(
        rule=decision.rule,
        rank=None,
        step=decision.step,
        statistic=None,
        limit=None,
        unit="",
        message=f"After decision {decision.number} the ranks went back to different steps "
        f"({told}): training can't go on.",
    )


def _name(action: Action) -> str:
    return action.name.lower()
