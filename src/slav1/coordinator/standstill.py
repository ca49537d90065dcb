"""Ranks that make no progress: all of them are looked at before anybody is blamed."""

from slav1.breach import Breach
from slav1.contract import Contract
from slav1.coordinator import messages
from slav1.coordinator.decisions import Send
from slav1.coordinator.membership import Membership
from slav1.coordinator.stall import Stall
from slav1.coordinator.surveys import Surveys

_DEFAULT_LIMIT_S = 600.0


def stall_of(contract: Contract) -> Stall:
    """The judge of standstills, with the excuses that a contract leaves."""
    hang = contract.rules.get("hang")
    limits = hang and hang.detector
    return Stall(
        compile_limit_s=getattr(limits, "first_step_limit_s", _DEFAULT_LIMIT_S),
        store_limit_s=getattr(limits, "checkpoint_limit_s", _DEFAULT_LIMIT_S),
    )


class Standstill:
    """Surveys the job while any rank is silent. Time is passed in."""

    def __init__(self, contract: Contract, membership: Membership, send: Send) -> None:
        """Starts with everybody at work.

        Args:
            contract: The contract in force.
            membership: Whom to ask.
            send: Sends a message to the node of that number.
        """
        self._stall = stall_of(contract)
        self._surveys = Surveys()
        self._membership = membership
        self._send = send

    @property
    def is_overdue(self) -> bool:
        """Whether some rank is silent beyond its hard limit."""
        return self._stall.is_overdue

    def expect_uneven_batches(self, *, is_likely: bool) -> None:
        """All ranks have said how many batches they have."""
        self._stall.has_uneven_batches = is_likely

    def forget(self, rank: int) -> None:
        """A rank left or is gone; its own silence no longer counts."""
        self._stall.forget(rank)

    def on_finding(self, breach: Breach) -> list[Breach]:
        """Takes in what one rank's own hang detector says; returns what follows of it."""
        over = self._stall.on_finding(breach)
        return [] if over is None else [over]

    def on_survey(self, node: int, answer: messages.Survey, now_s: float) -> list[Breach]:
        """Takes in what a node saw; returns what the survey shows once it is complete."""
        self._surveys.add(node, answer)
        return self.judge(now_s)

    def judge(self, now_s: float) -> list[Breach]:
        """Returns what a survey shows that is complete or late; nothing if none is."""
        positions = self._surveys.take(now_s)
        return list(self._stall.judge(positions)) if positions else []

    def look(self, now_s: float) -> None:
        """Asks all nodes to look at their ranks, if any rank is silent and it is time."""
        if self._surveys.is_under_way or not self._stall.wants_look(now_s):
            return
        nodes = self._membership.speaking
        number = self._surveys.begin(nodes, now_s)
        for node in nodes:
            asked = messages.AskSurvey(number=number, num_told=self._stall.num_told)
            self._send(node, asked)
