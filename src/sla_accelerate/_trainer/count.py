"""How batches that are left out change what a trainer counts in an epoch."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sla_accelerate._batches.order import Skip


class Begin(NamedTuple):
    """Where in its epochs a trainer begins."""

    epoch: int
    """The first epoch it trains in, from 0."""

    num_trained: int
    """Batches of it that it has trained with."""


def begin_of(position: Mapping[str, Any]) -> Begin:
    """Where training goes on, by the saved position of its one loader."""
    epoch, num_handed = position["epoch"], position["num_handed"]
    if position["is_at_end"]:
        return Begin(epoch + 1, 0)
    skips = skips_of(position)
    return Begin(epoch, num_handed - num_left_out(skips, epoch, num_handed))


def skips_of(position: Mapping[str, Any]) -> tuple[Skip, ...]:
    """What was left out when the position was saved."""
    return tuple(Skip(*each) for each in position["skips"])


def num_left_out(skips: Iterable[Skip], epoch: int, num_batches: int) -> int:
    """How many of the first ``num_batches`` of an epoch are left out.

    Example:
        >>> num_left_out([Skip(0, 2, 4), Skip(0, 3, 6), Skip(1, 0, 9)], 0, 5)
        3
    """
    spans = [(s.first, min(s.end, num_batches)) for s in skips if s.epoch == epoch]
    return len({number for first, end in spans for number in range(first, end)})


def num_updates(num_batches: int, accumulation: int) -> int:
    """Updates of an epoch of so many batches."""
    return -(-num_batches // accumulation)
