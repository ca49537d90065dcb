"""e-CUSUM over yes-or-no events: evidence that something happens too often."""

import math
from functools import lru_cache


@lru_cache(maxsize=1024)
def _weights(happened: bool, null_ratio: float, ratios: tuple[float, ...]) -> tuple[float, ...]:
    """What an event adds to each score, or what its absence takes away."""
    if happened:
        return tuple(math.log(ratio / null_ratio) for ratio in ratios)
    return tuple(math.log((1.0 - ratio) / (1.0 - null_ratio)) for ratio in ratios)


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
    weights = _weights(happened, null_ratio, ratios)
    if not scores:
        return weights
    pairs = zip(scores, weights, strict=True)
    return tuple([score + weight if score > 0.0 else weight for score, weight in pairs])


@lru_cache(maxsize=256)
def ecusum_limit(*, arl0: float, num_tests: int) -> float:
    """The score at which there is an alarm.

    Args:
        arl0: Wanted mean number of events between false alarms of all tests together.
        num_tests: How many (test, ratio) pairs share it.
    """
    return math.log(arl0 * num_tests)
