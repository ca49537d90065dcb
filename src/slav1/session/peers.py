"""How the ranks of a watched run meet: through their monitors and the coordinator."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Protocol, get_args

import msgspec

from slav1.ledger import Kind
from slav1.session import messages
from slav1.session.link import MonitorLink

REPEAT_S = 10.0
"""Pause after which a rank that waits says so again, in seconds: its first word, or the
answer, may be lost with a connection between two nodes."""

ANSWER_MARGIN_S = 15.0
"""How long after its own limit a rank waits for the common answer, in seconds. Longer than
a silence that is told of."""

MAX_VALUE_BYTES = 1 << 24
"""Most that a rank may bring to a meeting, encoded, in bytes."""

_LEFT = "this rank has left the run"


class Spare(Protocol):
    """Another way to meet, for when a monitor is gone; all ranks change to it alike."""

    @property
    def is_in_use(self) -> bool:
        """Whether any rank has changed to it."""
        ...

    def change_over(self) -> None:
        """Lets all ranks change to it."""
        ...

    def fail(self, topic: str, count: int, reason: str) -> None:
        """Lets whoever comes to this meeting there fail at once, as others have."""
        ...

    def gather(self, topic: str, count: int, raw: bytes, limit_s: float) -> list[bytes]:
        """Collective. Meets there."""
        ...


class RunPeers:
    """The ranks of a run, by its monitors as long as all of these live.

    A meeting that a monitor's death interrupts fails on all ranks that have no answer yet,
    and later ones go the other way, if there is one.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        link: Callable[[], MonitorLink | None],
        write: Callable[[messages.Note], None],
        spare: Spare | None,
        io_percent: Callable[[], int],
    ) -> None:
        """Starts before the first meeting.

        Args:
            rank: Global rank of this process.
            world_size: Ranks of the run.
            link: Returns the connection to the monitor; None when there is none.
            write: Brings a line into the ledger.
            spare: The way without monitors; None if there is none.
            io_percent: Tells :attr:`io_percent`.
        """
        self._io_percent = io_percent
        self.rank = rank
        self.world_size = world_size
        self._link = link
        self._write = write
        self._spare = spare
        self._has_left = False
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def io_percent(self) -> int:
        return self._io_percent()

    def gather(self, topic: str, value: Any, *, limit_s: float) -> list[Any]:
        raw = _encoded(topic, value)
        with self._lock:
            count = self._counts[topic]
            self._counts[topic] += 1
        link = self._link()
        if self._has_left:
            raise self._interrupted(topic, count, _LEFT)
        if self._spare is not None and (self._spare.is_in_use or link is None):
            return [_decoded(each) for each in self._spare.gather(topic, count, raw, limit_s)]
        if link is None:
            raise self._interrupted(topic, count, "no monitor is there any more")
        number = link.question()
        try:
            question = messages.Meet(
                number=number, topic=topic, count=count, limit_s=limit_s, value=raw
            )
            met = self._meet(link, question)
        finally:
            link.forget(number)
        if met.reason:
            raise peers_missing(topic, met.missing, met.arrived, met.reason)
        return [_decoded(each) for each in met.values]

    def record(
        self,
        kind: str,
        message: str,
        *,
        step: int | None = None,
        rule: str | None = None,
        **evidence: Any,
    ) -> None:
        if kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}.")
        self._write(
            messages.Note(message=message, step=step, evidence=evidence, kind=kind, rule=rule)
        )

    def leave(self) -> None:
        """This rank leaves the run: it meets nobody any more."""
        self._has_left = True

    def change_over(self) -> None:
        """The monitor of this rank is gone: lets all ranks meet in the other way."""
        if self._spare is not None:
            self._spare.change_over()

    def _meet(self, link: MonitorLink, question: messages.Meet) -> messages.Met:
        deadline_s = monotonic() + question.limit_s + ANSWER_MARGIN_S
        while True:
            wait_s = min(REPEAT_S, deadline_s - monotonic())
            answer = link.ask(question.number, question, max(0.0, wait_s))
            if isinstance(answer, messages.Met):
                return answer
            if self._has_left:
                raise self._interrupted(question.topic, question.count, _LEFT)
            if not link.is_open():
                reason = f"the monitor that rank {self.rank} spoke through has ended"
                raise self._interrupted(question.topic, question.count, reason)
            if monotonic() >= deadline_s:
                reason = f"the monitor of rank {self.rank} does not answer"
                raise self._interrupted(question.topic, question.count, reason)

    def _interrupted(self, topic: str, count: int, reason: str) -> Exception:
        if self._spare is not None and not self._has_left:
            self._spare.fail(topic, count, reason)
            self._spare.change_over()
        return peers_missing(topic, (), [self.rank], reason)


def peers_missing(
    topic: str, missing: Sequence[int], arrived: Sequence[int], reason: str
) -> Exception:
    """Makes the error of a meeting to which some ranks did not come."""
    # Late: the monitor's process loads this module, and must not load the checkpoints' line.
    from slav1.checkpoint.peers import PeersMissingError

    return PeersMissingError(topic=topic, missing=missing, arrived=arrived, reason=reason)


def _encoded(topic: str, value: Any) -> bytes:
    raw = msgspec.msgpack.encode(value)
    if len(raw) > MAX_VALUE_BYTES:
        raise ValueError(
            f"What a rank brings to the meeting {topic!r} has {len(raw)} bytes encoded; at most "
            f"{MAX_VALUE_BYTES} are taken. Send a digest of it instead."
        )
    return raw


def _decoded(raw: bytes) -> Any:
    return msgspec.msgpack.decode(raw)
