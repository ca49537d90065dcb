"""The job's end of the scheduled decision: which step every rank acts at."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from slav1.decision import Action, Decision
from slav1.named_ranks import named, numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """To a node's monitor: make your ranks wait, then acknowledge with their step."""

    node: str
    """Node whose monitor is told."""

    number: int
    """Number of the decision being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """To a node's monitor: publish this decision to your ranks."""

    node: str
    """Node whose monitor is told."""

    decision: Decision
    """What is done, and at the end of which step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """To a node's monitor: let your ranks go on."""

    node: str
    """Node whose monitor is told."""

    number: int
    """Number of the decision that is over."""


class Result(Enum):
    """What became of a decision."""

    CARRIED_OUT = "carried_out"
    """Every rank that is still there acted."""

    WITHDRAWN = "withdrawn"
    """Nobody acted, and nobody will."""

    COVERED = "covered"
    """Never started, or given up before it was scheduled: another decision does as
    much or more."""

    MOOT = "moot"
    """Training ended before the step it was scheduled for. Nobody acted."""

    OVERDUE = "overdue"
    """Scheduled, but not carried out in time. It stands; somebody must look after the
    missing ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """For the ledger: what became of a decision."""

    decision: Decision
    """The decision."""

    result: Result
    """What became of it."""

    carried_out: tuple[int, ...]
    """Global ranks that acted, in order."""

    missing: tuple[int, ...]
    """Global ranks that are still there and have not acted, in order."""

    reason: str
    """One sentence for people."""


Effect: TypeAlias = Hold | Schedule | Release | Outcome
"""What the caller must do: send the first three, write down the last, in order."""

Effects: TypeAlias = tuple[Effect, ...]


class Agreement:
    """Makes one decision at a time, so that all ranks act at the end of one step.

    Each node's monitor sets the hold and answers with the largest step its ranks
    published. The largest answer is a step that every rank can act at and none has
    ended; from then on the decision stands and is never withdrawn, since a rank
    may have acted. Belongs to one attempt: once a rank or a node is lost nothing
    more is decided, because some rank could not follow.
    """

    def __init__(
        self,
        nodes: Mapping[str, Collection[int]],
        *,
        acknowledge_limit_s: float = 5.0,
        carry_out_limit_s: float = 600.0,
    ) -> None:
        """Starts with nothing to decide.

        Args:
            nodes: Global ranks of each node, by the node's name. All of them must
                have a block that their monitor can write to.
            acknowledge_limit_s: Time for all nodes to acknowledge, in seconds.
                Ranks may stand still so long.
            carry_out_limit_s: Time for all ranks to act on a schedule, in seconds;
                longer than the longest step with its evaluation and checkpoint.
        """
        self._nodes = {name: frozenset(ranks) for name, ranks in nodes.items()}
        self._everyone = frozenset[int]().union(*self._nodes.values())
        self._acknowledge_limit_s = acknowledge_limit_s
        self._carry_out_limit_s = carry_out_limit_s
        self._num_decisions = 0
        self._current: Decision | None = None
        self._waiting: Decision | None = None
        self._acknowledged: dict[str, int] = {}
        self._carried_out: set[int] = set()
        self._done: set[int] = set()
        self._lost: set[int] = set()
        self._lost_nodes: set[str] = set()
        self._since_s: float | None = None
        self._is_overdue = False

    @property
    def current(self) -> Decision | None:
        """The decision being made or carried out; its step is None until it is scheduled."""
        return self._current

    def propose(
        self,
        action: Action,
        *,
        rule: str,
        rank: int | None,
        reason: str,
        onset_step: int | None = None,
        alarm_step: int | None = None,
    ) -> Effects:
        """Starts a decision, or lines it up behind the one that is scheduled.

        Args:
            action: What every rank shall do; above ``LOG``, which needs no agreement.
            rule: Rule whose breach led here.
            rank: Global rank at fault, if one is.
            reason: One sentence for people.
            onset_step: First bad step, if it is known.
            alarm_step: Step at which it was found, if it is known.
        """
        assert action > Action.LOG, "LOG is done by whoever logs; it needs no agreement"
        self._num_decisions += 1
        decision = Decision(
            number=self._num_decisions,
            action=action,
            rule=rule,
            rank=rank,
            reason=reason,
            onset_step=onset_step,
            alarm_step=alarm_step,
        )
        if self._current is None:
            return self._start(decision)
        highest = self._waiting or self._current
        if action <= highest.action:
            return (_outcome(decision, Result.COVERED, f"Decision {_name(highest)} covers it."),)
        if self._current.step is None:
            covered = self._end(Result.COVERED, f"Decision {_name(decision)} covers it.")
            return (*covered, *self._start(decision))
        return self._line_up(decision)

    def on_acknowledge(self, node: str, number: int, step: int) -> Effects:
        """A node's monitor set the hold; its ranks can act at the end of ``step``."""
        decision = self._current
        if decision is None or decision.number != number or decision.step is not None:
            return ()
        self._acknowledged[node] = step
        if len(self._acknowledged) < len(self._nodes):
            return ()
        scheduled = replace(decision, step=max(self._acknowledged.values()))
        self._current, self._since_s = scheduled, None
        return tuple(Schedule(node=name, decision=scheduled) for name in self._nodes)

    def on_carried_out(self, rank: int, number: int) -> Effects:
        """A rank confirmed decision ``number``. Told before that the rank is done."""
        if self._current is None or self._current.number != number:
            return ()
        self._carried_out.add(rank)
        return self._end_if_complete()

    def on_rank_done(self, rank: int) -> Effects:
        """A rank ended its last step and said goodbye.

        All ranks end after the same step. So a decision that is not scheduled by now
        would be for a step that nobody runs.
        """
        self._done.add(rank)
        if self._current is not None and self._current.step is None:
            return self._end(Result.MOOT, f"Training ended on rank {rank} before it was scheduled.")
        return self._end_if_complete()

    def on_rank_lost(self, rank: int) -> Effects:
        """A rank's process is gone without a goodbye."""
        self._lost.add(rank)
        return self._on_loss(f"Rank {rank} was lost before it was scheduled.")

    def on_node_lost(self, node: str) -> Effects:
        """A node's monitor is gone; whatever its ranks do, they act on no decision."""
        self._lost |= self._nodes[node]
        self._lost_nodes.add(node)
        return self._on_loss(f"Node {node} was lost before it was scheduled.")

    def on_tick(self, time_s: float) -> Effects:
        """Time passes.

        Args:
            time_s: Now, on any clock that never goes back, in seconds. Limits count
                from the first tick after a decision was proposed or scheduled.
        """
        decision = self._current
        if decision is None or self._is_overdue:
            return ()
        if self._since_s is None:
            self._since_s = time_s
        is_scheduled = decision.step is not None
        limit_s = self._carry_out_limit_s if is_scheduled else self._acknowledge_limit_s
        if time_s - self._since_s <= limit_s:
            return ()
        return self._report_overdue(decision) if is_scheduled else self._give_up()

    def _start(self, decision: Decision) -> Effects:
        if self._lost:
            reason = f"Ranks that were lost: {numbers(sorted(self._lost))}."
            return (_outcome(decision, Result.WITHDRAWN, reason),)
        if self._done:
            return (_outcome(decision, Result.MOOT, "Training has ended."),)
        self._current = decision
        return tuple(Hold(node=name, number=decision.number) for name in self._nodes)

    def _line_up(self, decision: Decision) -> Effects:
        passed_over, self._waiting = self._waiting, decision
        if passed_over is None:
            return ()
        return (_outcome(passed_over, Result.COVERED, f"Decision {_name(decision)} covers it."),)

    def _on_loss(self, reason: str) -> Effects:
        if self._current is not None and self._current.step is None:
            return self._end(Result.WITHDRAWN, reason)
        return self._end_if_complete()

    def _end_if_complete(self) -> Effects:
        if self._current is None or self._missing():
            return ()
        if self._carried_out:
            return self._end(Result.CARRIED_OUT, "Every rank acted that is still there.")
        return self._end(Result.MOOT, "Training ended before the step it was scheduled for.")

    def _give_up(self) -> Effects:
        silent = ", ".join(sorted(set(self._nodes) - set(self._acknowledged)))
        return self._end(
            Result.WITHDRAWN, f"No answer within {self._acknowledge_limit_s:g} s from: {silent}."
        )

    def _report_overdue(self, decision: Decision) -> Effects:
        self._is_overdue = True
        late = named(self._missing())
        reason = f"Not carried out within {self._carry_out_limit_s:g} s by {late}."
        return (self._outcome_of(decision, Result.OVERDUE, reason),)

    def _end(self, result: Result, reason: str) -> Effects:
        """Ends the current decision and starts the one that waits, if one does."""
        assert self._current is not None, "only a decision that was started can end"
        outcome = self._outcome_of(self._current, result, reason)
        number, waiting = self._current.number, self._waiting
        releases = [
            Release(node=name, number=number)
            for name in self._nodes
            if name not in self._lost_nodes
        ]
        self._current = self._waiting = self._since_s = None
        self._acknowledged, self._carried_out, self._is_overdue = {}, set(), False
        return (outcome, *releases, *(self._start(waiting) if waiting else ()))

    def _missing(self) -> tuple[int, ...]:
        return tuple(sorted(self._everyone - self._carried_out - self._done - self._lost))

    def _outcome_of(self, decision: Decision, result: Result, reason: str) -> Outcome:
        acted = tuple(sorted(self._carried_out))
        return Outcome(
            decision=decision,
            result=result,
            carried_out=acted,
            missing=self._missing(),
            reason=reason,
        )


def _outcome(decision: Decision, result: Result, reason: str) -> Outcome:
    """What became of a decision that no rank was told about."""
    return Outcome(decision=decision, result=result, carried_out=(), missing=(), reason=reason)


def _name(decision: Decision) -> str:
    return f"{decision.number} ({decision.action.name.lower()})"
