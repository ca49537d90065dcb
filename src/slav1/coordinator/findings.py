"""What was found: judged by the policy, written down, and handed to whoever acts on it."""

import time
from collections.abc import Iterable

from slav1.breach import Breach, Status
from slav1.contract import Contract
from slav1.coordinator.decisions import Decisions
from slav1.coordinator.journal import Journal
from slav1.coordinator.membership import Membership
from slav1.coordinator.recovery import Fault, fault_of
from slav1.coordinator.throttling import Throttling
from slav1.decision import Action
from slav1.policy import judge


class Findings:
    """Takes in the findings of one attempt, in the order in which they come."""

    def __init__(
        self,
        contract: Contract,
        *,
        journal: Journal,
        decisions: Decisions,
        throttling: Throttling,
        membership: Membership,
    ) -> None:
        """Starts with nothing found.

        Args:
            contract: What is owed.
            journal: Where findings are written down.
            decisions: Acts on those that need a common step.
            throttling: Acts on those that slow saves.
            membership: Who is there.
        """
        self._contract = contract
        self._journal = journal
        self._decisions = decisions
        self._throttling = throttling
        self._membership = membership
        self._fault: Fault | None = None
        self._is_closed = False

    def judge_all(self, breaches: Iterable[Breach]) -> None:
        """Takes in several findings."""
        for breach in breaches:
            self.judge(breach)

    def judge(self, breach: Breach) -> None:
        """Takes in one finding."""
        decisions, nodes = self._decisions, self._membership.listening
        if decisions.ending is not None and breach.rule == "liveness":
            decisions.on_process_ended(breach.rank)
            return
        rule = self._contract.rules[breach.rule]
        verdict = judge(breach, rule, can_roll_back=self._membership.can_roll_back)
        self._journal.breach(breach, rule, verdict)
        if self._is_closed or self._throttling.takes(breach, verdict.action, nodes):
            return
        if breach.status is Status.BREACH and verdict.action > Action.LOG:
            self._fault = self._fault or fault_of(breach, time.time_ns())
            decisions.decide(verdict.action, breach, nodes)

    def take_fault(self) -> Fault | None:
        """Returns, once, the first fault that was acted on since it was last asked for."""
        fault, self._fault = self._fault, None
        return fault

    def close(self) -> None:
        """From now on findings are written down and nothing else."""
        self._is_closed = True
