"""Ranks of a node that wait in meetings of all ranks: who is told what became of them."""

from collections.abc import Callable, Mapping

from slav1.coordinator import messages as job
from slav1.monitor.relay import relayed
from slav1.monitor.watched_rank import WatchedRank
from slav1.session import messages as local

_Key = tuple[str, int]


class NodeMeetings:
    """Brings what ranks bring to the coordinator, and its answer back to all of them."""

    def __init__(
        self, ranks: Mapping[int, WatchedRank], send: Callable[[job.FromNode], None]
    ) -> None:
        """Starts with nobody waiting.

        Args:
            ranks: All ranks of the node that ever joined; seen as it changes.
            send: Sends a message to the coordinator.
        """
        self._ranks = ranks
        self._send = send
        self._waiting: dict[_Key, dict[int, int]] = {}

    def add(self, rank: WatchedRank, message: local.Meet, *, is_cut: bool) -> None:
        """A rank comes to a meeting, or says again that it waits there.

        Args:
            rank: The rank.
            message: What it brings.
            is_cut: Whether the coordinator is silent.
        """
        key = message.topic, message.count
        self._waiting.setdefault(key, {})[rank.rank] = message.number
        if is_cut:
            self._fail(key)
        else:
            self._send(relayed(rank.rank, message, rank.phase))

    def on_met(self, message: job.RanksMet) -> None:
        """A meeting is over: tells the ranks that wait in it."""
        for rank, number in self._waiting.pop((message.topic, message.count), {}).items():
            answer = local.Met(
                number=number,
                values=message.values,
                arrived=message.arrived,
                missing=message.missing,
                reason=message.reason,
            )
            self._ranks[rank].connection.send(answer)

    def on_cut(self) -> None:
        """The coordinator is silent: nobody waits for its answers any more."""
        for key in list(self._waiting):
            self._fail(key)

    def _fail(self, key: _Key) -> None:
        topic, count = key
        self.on_met(
            job.RanksMet(
                topic=topic,
                count=count,
                arrived=sorted(self._waiting[key]),
                reason="the coordinator beside rank 0 is silent",
            )
        )
