"""How ranks are named in a sentence, however many they are."""

from collections.abc import Sequence

MOST = 16
"""Ranks that a sentence names."""


def numbers(ranks: Sequence[int]) -> str:
    """Their numbers, the first of them if they are many; ``none`` without any.

    Example:
        >>> numbers([0, 3]), numbers(range(20))
        ('0, 3', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more')
    """
    more = len(ranks) - MOST
    shown = ", ".join(map(str, ranks[:MOST]))
    return f"{shown} and {more} more" if more > 0 else shown or "none"


def named(ranks: Sequence[int]) -> str:
    """The ranks with the word for them, to stand in a sentence.

    Args:
        ranks: Global ranks, at least one.

    Example:
        >>> named([1]), named([0, 1])
        ('rank 1', 'ranks 0, 1')
    """
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers(ranks)}"
