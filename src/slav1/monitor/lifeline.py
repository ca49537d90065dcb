"""A node's line to the coordinator: whether it holds, and what a node does without it."""

from slav1.breach import Breach, Status
from slav1.contract import Contract
from slav1.coordinator.membership import NODE_SILENCE_S
from slav1.decision import Action
from slav1.policy import judge

_STANDSTILLS = ("hang", "liveness")


class Lifeline:
    """Keeps the time of the coordinator's last word, and its own ranks' standstills.

    While the line holds, only the coordinator decides. When it is cut, the job can still
    be running, with its coordinator killed; or its first node is gone and all that is
    left will hang. Which of the two it is shows in the ranks: only the second leads
    to an end, and only for the ranks of this node.
    """

    def __init__(self, contract: Contract, now_s: float) -> None:
        """Starts as if the coordinator had just spoken.

        Args:
            contract: The contract in force.
            now_s: Monotonic clock, in seconds.
        """
        self._contract = contract
        self._heard_at_s = now_s
        self._standstills: dict[int | None, Breach] = {}
        self._was_cut = False

    def hear(self, now_s: float) -> None:
        """The coordinator said something; or its silence so far does not count."""
        self._heard_at_s = now_s

    def note(self, breach: Breach) -> None:
        """Remembers standstills that the contract would act on, until they are over."""
        if breach.rule not in _STANDSTILLS:
            return
        if breach.status is Status.RECOVERED:
            self._standstills.pop(breach.rank, None)
        elif judge(breach, self._contract.rules[breach.rule]).action > Action.LOG:
            self._standstills[breach.rank] = breach

    def has_changed(self, now_s: float) -> bool:
        """Whether the line was cut, or mended, since the last call."""
        was_cut, self._was_cut = self._was_cut, self.is_cut(now_s)
        return was_cut is not self._was_cut

    def is_cut(self, now_s: float) -> bool:
        """Whether the coordinator has been silent for too long."""
        return now_s - self._heard_at_s > NODE_SILENCE_S

    def reason_to_end(self, now_s: float) -> Breach | None:
        """Why this node's ranks must be ended by this node alone; None if they need not."""
        if not self.is_cut(now_s):
            return None
        return next(iter(self._standstills.values()), None)
