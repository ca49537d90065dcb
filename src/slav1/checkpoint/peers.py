"""How the ranks of a run talk while they save and choose checkpoints."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class PeersMissingError(RuntimeError):
    """Some ranks did not come to a meeting.

    Attributes:
        topic: What the meeting was about.
        missing: Ranks that did not come, ascending.
        arrived: Ranks that did, ascending.
    """

    def __init__(
        self, *, topic: str, missing: Sequence[int], arrived: Sequence[int], reason: str = ""
    ) -> None:
        why = f": {reason}" if reason else ""
        others = f"missing {sorted(missing)}" if missing else "and broken off"
        advice = (
            " Every rank has to make the same calls in the same order; look for a call that only "
            "some ranks make, or for a rank that was lost."
        )
        super().__init__(
            f"{topic} entered by ranks {sorted(arrived)}, {others}{why}.{advice if missing else ''}"
        )
        self.topic = topic
        self.missing = tuple(sorted(missing))
        self.arrived = tuple(sorted(arrived))
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.topic, self.missing, self.arrived, self.reason)


def _again(
    topic: str, missing: Sequence[int], arrived: Sequence[int], reason: str
) -> PeersMissingError:
    return PeersMissingError(topic=topic, missing=missing, arrived=arrived, reason=reason)


class Peers(Protocol):
    """The ranks of one run, seen from one of them; no collective of torch is used."""

    rank: int
    """Global rank of this process, from 0."""

    world_size: int
    """How many ranks there are."""

    @property
    def io_percent(self) -> int:
        """Share of its speed that a save in the background shall keep now, in percent."""
        ...

    def gather(self, topic: str, value: Any, *, limit_s: float) -> list[Any]:
        """Collective. What every rank passed, in rank order, the same on all ranks.

        One topic is one meeting; the n-th call with a topic meets the n-th of the others.
        May be called from any thread.

        Args:
            topic: What the meeting is about.
            value: Plain value: None, bool, int, float, str, bytes, lists and dicts of those.
            limit_s: How long to wait for the others, in seconds.

        Raises:
            PeersMissingError: On every rank that came, if one did not within ``limit_s``
                or is lost.
        """
        ...

    def record(
        self,
        kind: str,
        message: str,
        *,
        step: int | None = None,
        rule: str | None = None,
        **evidence: Any,
    ) -> None:
        """Writes one line into the run's ledger. Not collective.

        Args:
            kind: One of :data:`slav1.ledger.Kind`.
            message: One sentence for people.
            step: Optimizer step it is about.
            rule: Rule of the contract it is about.
            **evidence: Whatever else helps to judge what happened.
        """
        ...


class Alone:
    """The peers of a run of one rank: there are none.

    Args:
        on_record: Called with the arguments of :meth:`record`; None drops them.
        io_percent: Tells :attr:`io_percent`; None leaves saves at full speed.
    """

    rank = 0
    world_size = 1

    def __init__(
        self,
        on_record: Callable[..., None] | None = None,
        io_percent: Callable[[], int] | None = None,
    ) -> None:
        self._on_record = on_record
        self._io_percent = io_percent

    @property
    def io_percent(self) -> int:
        return 100 if self._io_percent is None else self._io_percent()

    def gather(self, topic: str, value: Any, *, limit_s: float) -> list[Any]:
        return [value]

    def record(
        self,
        kind: str,
        message: str,
        *,
        step: int | None = None,
        rule: str | None = None,
        **evidence: Any,
    ) -> None:
        if self._on_record is not None:
            self._on_record(kind, message, step=step, rule=rule, **evidence)
