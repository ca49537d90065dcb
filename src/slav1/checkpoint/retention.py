"""Which checkpoints may go."""

from collections.abc import Sequence
from typing import TypeVar

AnyEntry = TypeVar("AnyEntry")

MIN_NEWER = 2
"""Verified newer ones before one goes: with fewer, damage to the newest leaves nothing."""


def removable(
    entries: Sequence[AnyEntry], is_good: Sequence[bool], num_newer: int
) -> list[AnyEntry]:
    """Those that have ``num_newer`` good ones that are newer.

    So the newest good one never goes, and a damaged or unhealthy one does not count as kept.

    Args:
        entries: Checkpoints, newest first.
        is_good: For each, whether it is healthy and was verified.
        num_newer: How many newer good ones are needed, at least 1.

    Example:
        >>> removable(["c", "b", "a"], [True, False, True], num_newer=1)
        ['b', 'a']
    """
    assert num_newer >= 1
    gone = []
    num_good = 0
    for entry, good in zip(entries, is_good, strict=True):
        if num_good >= num_newer:
            gone.append(entry)
        num_good += good
    return gone
