"""Who takes part in a job: its nodes and ranks, and when each node was last heard."""

from slav1.coordinator.messages import NodeDone

NODE_SILENCE_S = 10.0
"""Silence after which a node's monitor counts as silent, in seconds; it reports each second."""

PAUSE_S = 2.0
"""A gap between two ticks that is longer is a pause of the monitor itself, in seconds."""

JOIN_NOTICE_S = 60.0
"""Time from the first rank's arrival after which those still missing are named, in seconds."""


class Membership:
    """Keeps the books on nodes and ranks. Time is passed in."""

    def __init__(self, *, world_size: int, num_nodes: int) -> None:
        """Starts before anybody has come.

        Args:
            world_size: Ranks of the job.
            num_nodes: Nodes of the job.
        """
        self.world_size = world_size
        self.num_nodes = num_nodes
        self.nodes_of_ranks: dict[int, int] = {}
        """Node of every rank that ever joined."""
        self.done: dict[int, NodeDone] = {}
        """Last words of the nodes that have no rank left."""
        self._can_go_back: set[int] = set()
        self.silent: set[int] = set()
        """Nodes that stopped speaking, or never began to, and are not done."""
        self._heard_at_s: dict[int, float] = {}
        self._first_join_s: float | None = None
        self._quiet_since_s: float | None = None
        self._is_absence_told = False

    @property
    def is_complete(self) -> bool:
        """Whether every rank has joined."""
        return len(self.nodes_of_ranks) == self.world_size

    @property
    def can_roll_back(self) -> bool:
        """Whether every rank of the job has joined and its host can go back."""
        return len(self._can_go_back) == self.world_size

    @property
    def is_over(self) -> bool:
        """Whether no word of any node is awaited any more."""
        return len(self.done.keys() | self.silent) == self.num_nodes

    @property
    def listening(self) -> list[int]:
        """Nodes that were heard and are not done, in order."""
        return sorted(self._heard_at_s.keys() - self.done.keys())

    @property
    def speaking(self) -> list[int]:
        """Those of them that are not silent."""
        return [node for node in self.listening if node not in self.silent]

    def ranks_of(self, node: int) -> list[int]:
        """Ranks that joined on a node, in order."""
        return sorted(rank for rank, of_node in self.nodes_of_ranks.items() if of_node == node)

    def ranks_by_node(self) -> dict[str, list[int]]:
        """Ranks of every node that has any, by the node's name."""
        nodes = sorted(set(self.nodes_of_ranks.values()))
        return {str(node): self.ranks_of(node) for node in nodes}

    def hear(self, node: int, now_s: float) -> bool:
        """A node said something; returns whether it had been silent before."""
        self._heard_at_s[node] = now_s
        was_silent = node in self.silent
        self.silent.discard(node)
        return was_silent

    def join(self, rank: int, node: int, now_s: float, *, can_roll_back: bool = False) -> None:
        """A rank is watched from now on."""
        if can_roll_back:
            self._can_go_back.add(rank)
        self.nodes_of_ranks[rank] = node
        self._first_join_s = now_s if self._first_join_s is None else self._first_join_s

    def restart_clocks(self, now_s: float) -> None:
        """Nobody's silence up to now counts: the listener itself stood still."""
        self._heard_at_s = dict.fromkeys(self._heard_at_s, now_s)
        if self._quiet_since_s is not None:
            self._quiet_since_s = now_s

    def newly_silent(self, now_s: float) -> list[int]:
        """Returns the nodes that have just become silent.

        A node that never came is awaited as long as any other one is at work: it may
        still be loading its libraries.
        """
        is_quiet = bool(self._heard_at_s) and not self.speaking
        if not is_quiet:
            self._quiet_since_s = None
        elif self._quiet_since_s is None:
            self._quiet_since_s = now_s
        found = [
            node
            for node in range(self.num_nodes)
            if node not in self.done and node not in self.silent
            if self._is_silent(node, now_s)
        ]
        self.silent.update(found)
        return found

    def newly_missing(self, now_s: float) -> list[int]:
        """Returns the ranks that have not joined in time, once."""
        if self._is_absence_told or self.is_complete or self._first_join_s is None:
            return []
        if now_s - self._first_join_s < JOIN_NOTICE_S:
            return []
        self._is_absence_told = True
        return sorted(set(range(self.world_size)) - self.nodes_of_ranks.keys())

    def _is_silent(self, node: int, now_s: float) -> bool:
        since_s = self._heard_at_s.get(node, self._quiet_since_s)
        return since_s is not None and now_s - since_s > NODE_SILENCE_S
