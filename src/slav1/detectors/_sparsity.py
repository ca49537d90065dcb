"""Gradients in which far fewer elements than usual are not zero, as when units die."""

from typing import NamedTuple

from slav1.detectors._lone import Lone, seen_odd, seen_usual
from slav1.detectors._trend import Trend, begun, followed, residual

# A share counts from 40 % below the usual one (the source: "down 40 %").
FALL_RATIO = 0.6
SIGMAS = 8.0
NUM_NEEDED = 20
# Smallest noise to believe, as a share of the usual density, and at all.
MIN_NOISE_RATIO = 0.01
MIN_NOISE = 1e-4


class Density(NamedTuple):
    """What is known about the share of the gradient that is not zero."""

    trend: Trend = Trend()
    """Of its negative, so that a fall is what the trend calls a rise."""
    num_low: int = 0
    """Low ones in a row."""
    ratio: float = 1.0
    """The last one as a multiple of the usual one."""
    lone: Lone = Lone()
    """What is known about low ones that came alone."""

    @property
    def is_low(self) -> bool:
        """Whether it has been low for long enough."""
        return self.num_low >= self.lone.num_needed


def thinned(density: Density, share: float) -> Density:
    """What is known after one more share of elements that are not zero, from 0 to 1."""
    trend = density.trend
    if trend.num_seen == 0:
        return density._replace(trend=begun(-share))
    min_scale = max(MIN_NOISE_RATIO * abs(trend.level), MIN_NOISE)
    seen = residual(trend, -share, min_scale=min_scale)
    usual = share + seen.distance
    ratio = share / usual if usual > MIN_NOISE else 1.0
    is_judged = trend.num_seen >= NUM_NEEDED
    is_low = is_judged and seen.z > SIGMAS and ratio < FALL_RATIO
    lone, at = density.lone, trend.num_seen
    lone = seen_odd(lone, at, seen.distance) if is_low else seen_usual(lone, at, seen.z)
    return Density(
        trend=followed(trend, -share, seen, is_skipped=is_low and density.num_low < 20),
        num_low=density.num_low + 1 if is_low else 0,
        ratio=ratio,
        lone=lone,
    )
