"""Slowing background saves: an order that needs no common step, since nobody waits for it."""

from collections.abc import Iterable

from slav1.breach import Breach, Fact, Status
from slav1.coordinator import messages
from slav1.coordinator.decisions import Send
from slav1.coordinator.journal import Journal
from slav1.decision import Action, Decision

THROTTLED_PERCENT = 60
"""Share of its speed that a save in the background keeps, in percent."""

_NUMBER = 0


class Throttling:
    """Remembers for which rule the saves are slowed, and lets go when it recovers."""

    def __init__(self, journal: Journal, send: Send) -> None:
        """Starts without slowing anything.

        Args:
            journal: Where decisions are written.
            send: Sends a message to the node of that number.
        """
        self._journal = journal
        self._send = send
        self._rules: set[str] = set()

    def takes(self, breach: Breach, action: Action, nodes: Iterable[int]) -> bool:
        """Slows saves, or lets them go, if that is what follows from a finding.

        Args:
            breach: The finding.
            action: What follows from it.
            nodes: Nodes that can be told.

        Returns:
            Whether nothing else has to be done about it.
        """
        if breach.status is Status.RECOVERED and breach.rule in self._rules:
            self._rules.discard(breach.rule)
            if not self._rules:
                self._order(100, breach, nodes, "Background saves run at full speed again.")
            return True
        if breach.status is not Status.BREACH or action is not Action.THROTTLE_IO:
            return False
        is_new = not self._rules
        self._rules.add(breach.rule)
        if is_new:
            text = f"Background saves of all ranks are slowed to {THROTTLED_PERCENT} %."
            self._order(THROTTLED_PERCENT, breach, nodes, text)
        return True

    def _order(self, percent: int, breach: Breach, nodes: Iterable[int], text: str) -> None:
        decision = Decision(
            number=_NUMBER,
            action=Action.THROTTLE_IO,
            rule=breach.rule,
            rank=breach.rank,
            reason=breach.message,
            step=breach.step,
        )
        evidence: dict[str, Fact] = {"how": "at_once", "percent": percent}
        self._journal.decision(decision, f"Decision: {text} Reason: {breach.message}", evidence)
        for node in nodes:
            self._send(node, messages.Throttle(percent=percent))
