"""Meetings of all ranks, as in a save: what each one brings is handed to all."""

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

from slav1.coordinator.journal import Journal
from slav1.coordinator.membership import NODE_SILENCE_S, Membership
from slav1.coordinator.messages import RankMeets, RanksMet

MAX_KEPT = 1024
"""Meetings that are over and whose outcome is kept, for a rank that did not hear it."""

MAX_KEPT_BYTES = 4 << 20
"""What these may hold in all, in bytes; the newest is kept whatever it holds."""

_Key = tuple[str, int]


class _Open(NamedTuple):
    """A meeting that is not over."""

    values: dict[int, bytes]
    nodes: set[int]
    """Nodes of the ranks that came."""
    latest_s: float
    """When it fails, on the monotonic clock."""
    limit_s: float


class Answer(NamedTuple):
    """What is sent to some nodes."""

    nodes: Collection[int]
    message: RanksMet


class Meetings:
    """Collects what the ranks bring, and answers all of them at once. Time is passed in.

    The outcome of a meeting is one for all: whoever comes when it has failed gets the same
    answer as those who waited.
    """

    def __init__(self, membership: Membership, journal: Journal) -> None:
        """Starts with no meeting.

        Args:
            membership: Who is expected, and who is silent.
            journal: Where it is written that a meeting failed.
        """
        self._membership = membership
        self._journal = journal
        self._open: dict[_Key, _Open] = {}
        self._over: OrderedDict[_Key, RanksMet] = OrderedDict()
        self._gone: dict[int, str] = {}

    def add(self, node: int, message: RankMeets, now_s: float) -> list[Answer]:
        """A rank of ``node`` comes to a meeting, or says again that it waits there."""
        key = message.topic, message.count
        over = self._over.get(key)
        if over is not None:
            return [Answer([node], over)]
        meeting = self._open.get(key)
        latest_s = now_s + message.limit_s
        if meeting is None or latest_s < meeting.latest_s:
            values, nodes = ({}, set[int]()) if meeting is None else (meeting[0], meeting[1])
            meeting = _Open(values, nodes, latest_s, message.limit_s)
            self._open[key] = meeting
        meeting.values[message.rank] = message.value
        meeting.nodes.add(node)
        if len(meeting.values) == self._membership.world_size:
            ranks = sorted(meeting.values)
            values_in_order = [meeting.values[rank] for rank in ranks]
            return [self._end(key, values=values_in_order, arrived=ranks)]
        return self._fail_if_hopeless(key)

    def on_rank_gone(self, rank: int, reason: str) -> list[Answer]:
        """A rank left or is lost: nobody has to wait for it any more."""
        self._gone[rank] = reason
        return [answer for key in list(self._open) for answer in self._fail_if_hopeless(key)]

    def on_tick(self, now_s: float) -> list[Answer]:
        """Time passes; returns what ends by it."""
        found = []
        for key, meeting in list(self._open.items()):
            if now_s >= meeting.latest_s:
                found.append(self._fail(key, f"they did not come within {meeting.limit_s:g} s"))
            else:
                found += self._fail_if_silent(key)
        return found

    def _missing(self, meeting: _Open) -> list[int]:
        return sorted(set(range(self._membership.world_size)) - meeting.values.keys())

    def _fail_if_hopeless(self, key: _Key) -> list[Answer]:
        gone = [rank for rank in self._missing(self._open[key]) if rank in self._gone]
        if not gone:
            return []
        told = ", ".join(f"rank {rank} {self._gone[rank]}" for rank in gone)
        return [self._fail(key, told)]

    def _fail_if_silent(self, key: _Key) -> list[Answer]:
        nodes = self._membership.nodes_of_ranks
        silent = {nodes.get(rank) for rank in self._missing(self._open[key])}
        silent &= self._membership.silent
        if not silent:
            return []
        named = ", ".join(map(str, sorted(node for node in silent if node is not None)))
        return [
            self._fail(
                key, f"the monitor of node {named} has said nothing for {NODE_SILENCE_S:g} s"
            )
        ]

    def _fail(self, key: _Key, reason: str) -> Answer:
        meeting = self._open[key]
        missing, arrived = self._missing(meeting), sorted(meeting.values)
        self._journal.note(
            "notice",
            f"{key[0]} entered by ranks {arrived}, missing {missing}: {reason}.",
            evidence={
                "topic": key[0],
                "missing": list[int | str](missing),  # type: ignore[dict-item]
                "arrived": list[int | str](arrived),  # type: ignore[dict-item]
                "reason": reason,
            },
        )
        return self._end(key, arrived=arrived, missing=missing, reason=reason)

    def _end(
        self,
        key: _Key,
        *,
        arrived: list[int],
        values: list[bytes] | None = None,
        missing: list[int] | None = None,
        reason: str = "",
    ) -> Answer:
        meeting = self._open.pop(key)
        topic, count = key
        message = RanksMet(
            topic=topic,
            count=count,
            values=values or [],
            arrived=arrived,
            missing=missing or [],
            reason=reason,
        )
        self._keep(key, message)
        return Answer(sorted(meeting.nodes), message)

    def _keep(self, key: _Key, message: RanksMet) -> None:
        self._over[key] = message
        num_bytes = sum(_num_bytes(each) for each in self._over.values())
        while len(self._over) > 1 and (len(self._over) > MAX_KEPT or num_bytes > MAX_KEPT_BYTES):
            _, oldest = self._over.popitem(last=False)
            num_bytes -= _num_bytes(oldest)


def _num_bytes(message: RanksMet) -> int:
    return sum(map(len, message.values))
