"""e-CUSUM over yes-or-no events: evidence that something happens too often."""

import math
from functools import lru_cache


@lru_cache(maxsize=1024)
def _weights(null_ratio: float, ratio: float) -> tuple[float, float]:
    """What an event adds, and what its absence adds (a negative number)."""
    return math.log(ratio / null_ratio), math.log((1.0 - ratio) / (1.0 - null_ratio))


def ecusum(
    scores: tuple[float, ...], happened: bool, *, null_ratio: float, ratios: tuple[float, ...]
) -> tuple[float, ...]:
    """Takes in one event, or its absence.

    The exponential of a score never exceeds the sum of the e-processes started at
    each time, so the mean number of events between false alarms is at least what
    :func:`ecusum_limit` was asked for wherever the event's chance, given the past, is
    at most ``null_ratio``. Nothing else is assumed.

    Args:
        scores: Evidence so far, one number for each of ``ratios``; empty at the start.
        happened: Whether the event happened.
        null_ratio: Largest share of events in a healthy run, between 0 and 1.
        ratios: Shares of events to look for, each above ``null_ratio`` and under 1.

    Returns:
        Evidence after it, one number for each of ``ratios``. There is an alarm where
        one of them reaches :func:`ecusum_limit`; go on from an empty tuple then.

    Source:
        Shin, Ramdas, Rinaldo, "E-detectors: a nonparametric framework for sequential
        change detection", New England Journal of Statistics in Data Science 2(2), 2023.
    """
    which = 0 if happened else 1
    if not scores:
        return tuple(_weights(null_ratio, ratio)[which] for ratio in ratios)
    return tuple(
        max(0.0, score) + _weights(null_ratio, ratio)[which]
        for score, ratio in zip(scores, ratios, strict=True)
    )


@lru_cache(maxsize=256)
def ecusum_limit(*, arl0: float, num_tests: int) -> float:
    """The score at which there is an alarm.

    Args:
        arl0: Wanted mean number of events between false alarms of all tests together.
        num_tests: How many (test, ratio) pairs share it.
    """
    return math.log(arl0 * num_tests)
