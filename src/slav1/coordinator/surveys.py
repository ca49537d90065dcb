"""Looking at all ranks of the job at one moment: asked of every node, gathered here."""

from collections.abc import Iterable

from slav1.coordinator.messages import Position, Survey

SURVEY_LIMIT_S = 1.0
"""How long the nodes' answers are waited for, in seconds."""


class Surveys:
    """One survey after the other. Time is passed in."""

    def __init__(self) -> None:
        """Starts with none under way."""
        self.number = 0
        """Number of the newest survey."""
        self._began_s: float | None = None
        self._awaited: set[int] = set()
        self._positions: list[Position] = []

    @property
    def is_under_way(self) -> bool:
        """Whether answers are awaited."""
        return self._began_s is not None

    def begin(self, nodes: Iterable[int], now_s: float) -> int:
        """Starts a survey of these nodes; returns the number to ask them with."""
        self.number += 1
        self._began_s = now_s
        self._awaited = set(nodes)
        self._positions = []
        return self.number

    def add(self, node: int, answer: Survey) -> None:
        """Takes in what one node saw; an answer that comes too late is left out."""
        if self.is_under_way and answer.number == self.number and node in self._awaited:
            self._awaited.discard(node)
            self._positions += answer.positions

    def take(self, now_s: float) -> list[Position] | None:
        """Ends a survey that is complete or late.

        Returns:
            Where the ranks of all nodes are; none if a node did not answer in time, since
            nobody can be blamed by half of the evidence. None while answers are awaited.
        """
        if self._began_s is None:
            return None
        if self._awaited and now_s - self._began_s <= SURVEY_LIMIT_S:
            return None
        self._began_s = None
        return [] if self._awaited else self._positions
