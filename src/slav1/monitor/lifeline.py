"""A node's line to the coordinator: whether it holds, and what a node does without it."""

from collections.abc import Sequence

from slav1.breach import Breach, Status
from slav1.contract import Contract
from slav1.coordinator.membership import NODE_SILENCE_S
from slav1.coordinator.messages import Position
from slav1.coordinator.standstill import stall_of
from slav1.decision import Action
from slav1.policy import judge


class Lifeline:
    """Keeps the time of the coordinator's last word, and its own ranks' standstills.

    While the line holds, only the coordinator decides. When it is cut, the job can still
    be running, with its coordinator killed; or its first node is gone and all that is
    left will hang. Which of the two it is shows in the ranks: only the second leads
    to an end, and only for the ranks of this node. They are judged as the coordinator
    would: a rank that compiles, or writes a long checkpoint, is excused here too.
    """

    def __init__(self, contract: Contract, now_s: float) -> None:
        """Starts as if the coordinator had just spoken.

        Args:
            contract: The contract in force.
            now_s: Monotonic clock, in seconds.
        """
        self._contract = contract
        self._heard_at_s = now_s
        self._stall = stall_of(contract)
        self._lost: dict[int | None, Breach] = {}
        self._hang: Breach | None = None
        self._was_cut = False

    def hear(self, now_s: float) -> None:
        """The coordinator said something; or its silence so far does not count."""
        self._heard_at_s = now_s

    def note(self, breach: Breach) -> None:
        """Remembers what the detectors of single ranks find, until it is over."""
        if breach.rule == "hang":
            self._take_in(self._stall.on_finding(breach))
        elif breach.rule == "liveness":
            if breach.status is Status.RECOVERED:
                self._lost.pop(breach.rank, None)
            elif self._is_acted_on(breach):
                self._lost[breach.rank] = breach

    def forget(self, rank: int) -> None:
        """A rank left in good order: it stands still for good, and that is well."""
        self._stall.forget(rank)
        self._lost.pop(rank, None)
        if self._hang is not None and self._hang.rank == rank:
            self._hang = None

    def has_changed(self, now_s: float) -> bool:
        """Whether the line was cut, or mended, since the last call."""
        was_cut, self._was_cut = self._was_cut, self.is_cut(now_s)
        return was_cut is not self._was_cut

    def is_cut(self, now_s: float) -> bool:
        """Whether the coordinator has been silent for too long."""
        return now_s - self._heard_at_s > NODE_SILENCE_S

    def wants_look(self, now_s: float) -> bool:
        """Whether this node must look at its ranks on its own account."""
        return self.is_cut(now_s) and self._stall.wants_look(now_s)

    def judge(self, positions: Sequence[Position]) -> None:
        """Takes in where all ranks of the node are."""
        for breach in self._stall.judge(positions):
            self._take_in(breach)

    def reason_to_end(self, now_s: float) -> Breach | None:
        """Why this node's ranks must be ended by this node alone; None if they need not."""
        if not self.is_cut(now_s):
            return None
        return next(iter(self._lost.values()), self._hang)

    def _take_in(self, hang: Breach | None) -> None:
        if hang is not None:
            self._hang = hang if self._is_acted_on(hang) else None

    def _is_acted_on(self, breach: Breach) -> bool:
        return judge(breach, self._contract.rules[breach.rule]).action > Action.LOG
