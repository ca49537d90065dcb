"""What was found: judged by table and policy, written down, handed to whoever acts on it."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from slav1.breach import Breach, Status
from slav1.contract import Contract
from slav1.coordinator.adviser import Adviser
from slav1.coordinator.after_commit import AfterCommit, Waiting
from slav1.coordinator.decisions import Decisions
from slav1.coordinator.journal import Journal
from slav1.coordinator.membership import Membership
from slav1.coordinator.messages import RankNote
from slav1.coordinator.recovery import Fault, fault_of
from slav1.coordinator.rollbacks import Rollbacks
from slav1.coordinator.throttling import Throttling
from slav1.decision import Action
from slav1.policy import Answer, Verdict, judge, overruled

MAX_PROBLEMS_TOLD = 5
"""Troubles with the policy that get a line of their own in the ledger, each kind once."""

_WENT_BACK = "Its answer was not waited for: training has gone back."


@dataclass(slots=True)
class _Found:
    """A finding that is not judged yet."""

    breach: Breach
    found_s: float
    found_ns: int
    number: int | None = None
    """Number of the question about it; None if it has not been asked yet."""


class Findings:
    """Takes in the findings of one attempt and judges them in the order in which they come.

    Without a policy each is judged at once. With one, each waits for its answer, but never
    longer than the policy's deadline, counted from when it came; those behind it wait too.
    Time is passed in.
    """

    def __init__(
        self,
        contract: Contract,
        *,
        journal: Journal,
        decisions: Decisions,
        throttling: Throttling,
        membership: Membership,
        rollbacks: Rollbacks,
        adviser: Adviser | None = None,
    ) -> None:
        """Starts with nothing found.

        Args:
            contract: What is owed.
            journal: Where findings are written down.
            decisions: Acts on those that need a common step.
            throttling: Acts on those that slow saves.
            membership: Who is there.
            rollbacks: How often the run has gone back.
            adviser: Who asks the policy; None if there is none.
        """
        self._contract = contract
        self._journal = journal
        self._decisions = decisions
        self._throttling = throttling
        self._membership = membership
        self._rollbacks = rollbacks
        self._adviser = adviser
        self._waiting: deque[_Found] = deque()
        self._told: set[str] = set()
        self._put_off = AfterCommit()
        self._fault: Fault | None = None
        self._is_closed = False

    @property
    def are_waiting(self) -> bool:
        """Whether any finding waits for the policy."""
        return bool(self._waiting)

    def judge_all(self, breaches: Iterable[Breach], now_s: float) -> None:
        """Takes in several findings."""
        for breach in breaches:
            self.judge(breach, now_s)

    def judge(self, breach: Breach, now_s: float) -> None:
        """Takes in one finding."""
        found = _Found(breach, now_s, time.time_ns())
        if self._adviser is None or self._is_closed:
            self._conclude(found, self._table(breach))
            return
        self._waiting.append(found)
        self._advance(self._adviser, now_s)

    def on_note(self, note: RankNote, breaches: Iterable[Breach], now_s: float) -> None:
        """Takes in a line of a rank and what it shows; a commit is what some actions wait for."""
        self.judge_all(breaches, now_s)
        if note.kind == "checkpoint_committed":
            self._take_up(self._put_off.on_commit(note.step))

    def on_answers(self, now_s: float) -> None:
        """The policy has said something."""
        if self._adviser is None:
            return
        for number, answer in self._adviser.asked.answers():
            # What comes after its deadline is about a finding that has been judged.
            if self._waiting and self._waiting[0].number == number:
                found = self._waiting.popleft()
                took_s = now_s - found.found_s
                self._conclude(found, self._overruled(found.breach, replace(answer, took_s=took_s)))
        self._advance(self._adviser, now_s)

    def on_tick(self, now_s: float) -> None:
        """Time passes: an answer may be overdue, or what was put off due."""
        self._take_up(self._put_off.on_tick(now_s))
        if self._adviser is not None and self._waiting:
            self._advance(self._adviser, now_s)

    def settle(self) -> None:
        """Judges what waits by the table: what it is about is over."""
        while self._waiting:
            found = self._waiting.popleft()
            self._conclude(found, self._without_answer(found.breach, _WENT_BACK))

    def take_fault(self) -> Fault | None:
        """Returns, once, the first fault that was acted on since it was last asked for."""
        fault, self._fault = self._fault, None
        return fault

    def close(self) -> None:
        """From now on findings are written down and nothing else."""
        self._is_closed = True

    def _advance(self, adviser: Adviser, now_s: float) -> None:
        """Judges from the front on until one has to wait."""
        while self._waiting:
            found = self._waiting[0]
            verdict = self._verdict_on(found, adviser, now_s)
            if verdict is None:
                return
            self._waiting.popleft()
            self._conclude(found, verdict)

    def _verdict_on(self, found: _Found, adviser: Adviser, now_s: float) -> Verdict | None:
        """The verdict on a finding; None as long as its answer may come."""
        breach = found.breach
        if not adviser.wants(breach):
            return self._table(breach)
        asked, problem = adviser.asked, None
        is_late = now_s - found.found_s >= adviser.settings.deadline_s
        if found.number is None and not is_late:
            found.number = adviser.ask(
                breach,
                self._contract.rules[breach.rule],
                self._table(breach),
                now_s=now_s,
                rollbacks=self._rollbacks,
                can_roll_back=self._membership.can_roll_back,
            )
            is_late = found.number is None
        elif found.number is not None and (is_late or asked.has_ended()):
            is_late, problem = True, asked.why_silent()
            asked.give_up()
        if not is_late:
            return None
        return self._without_answer(breach, problem or asked.why_silent())

    def _without_answer(self, breach: Breach, problem: str) -> Verdict:
        if self._adviser is None or not self._adviser.wants(breach):
            return self._table(breach)
        return self._overruled(breach, Answer(problem=problem))

    def _table(self, breach: Breach) -> Verdict:
        rule = self._contract.rules[breach.rule]
        return judge(breach, rule, can_roll_back=self._membership.can_roll_back)

    def _overruled(self, breach: Breach, answer: Answer) -> Verdict:
        assert self._adviser is not None, "somebody was asked"
        return overruled(
            self._table(breach),
            answer,
            breach=breach,
            rule=self._contract.rules[breach.rule],
            grant=self._adviser.settings.grant,
            can_roll_back=self._membership.can_roll_back,
        )

    def _conclude(self, found: _Found, verdict: Verdict) -> None:
        breach, decisions, nodes = found.breach, self._decisions, self._membership.listening
        if decisions.ending is not None and breach.rule == "liveness":
            decisions.on_process_ended(breach.rank)
            return
        self._tell_problem(breach, verdict)
        self._journal.breach(breach, self._contract.rules[breach.rule], verdict)
        if self._is_closed or self._throttling.takes(breach, verdict.action, nodes):
            return
        if breach.status is Status.RECOVERED:
            self._put_off.forget(breach.rule, breach.rank)
        if breach.status is not Status.BREACH:
            return
        if self._adviser is not None:
            self._adviser.on_breach(breach.rule)
        if verdict.action > Action.LOG:
            if verdict.action >= Action.ROLLBACK:
                # What is milder lets training go on: there is nothing to come back from.
                self._fault = self._fault or fault_of(breach, found.found_ns)
            self._act(verdict.action, _with_policy(breach, verdict), found.found_s)

    def _act(self, action: Action, breach: Breach, found_s: float) -> None:
        waiting = self._put_off.takes(action, breach, found_s)
        if waiting is None:
            self._decisions.decide(action, breach, self._membership.listening)
            return
        wait_s = waiting.until_s - found_s
        self._journal.note(
            "notice",
            f"The {action.name.lower()} for {breach.rule} waits for the next checkpoint that is "
            f"committed, at most {wait_s:.0f} s.",
            rank=breach.rank,
            step=breach.step,
            rule=breach.rule,
            evidence={"waits_for": "checkpoint_committed", "at_most_s": wait_s},
        )

    def _take_up(self, due: Iterable[Waiting]) -> None:
        for action, breach, _ in due:
            if not self._is_closed:
                self._decisions.decide(action, breach, self._membership.listening)

    def _tell_problem(self, breach: Breach, verdict: Verdict) -> None:
        problem = (verdict.policy or {}).get("problem")
        if not isinstance(problem, str) or problem in self._told or problem == _WENT_BACK:
            return
        if len(self._told) < MAX_PROBLEMS_TOLD:
            self._told.add(problem)
            self._journal.note(
                "notice",
                f"Policy: {problem} The contract's table decides.",
                rule=breach.rule,
                evidence={"policy_problem": problem},
            )


def _with_policy(breach: Breach, verdict: Verdict) -> Breach:
    """The breach with a word on who decided, where it was not the table."""
    said = verdict.policy or {}
    action = verdict.action.name.lower()
    if "said" not in said or action == said["table"]:
        return breach
    text = f"{breach.message} The policy says {action}, not {said['table']}."
    return replace(breach, message=text)
