"""Gradient norms far above their usual ones, as evidence beside the loss."""

import math
from typing import NamedTuple

from slav1.detectors._lone import Lone, seen_odd, seen_usual
from slav1.detectors._trend import NUM_UNCLIPPED, Trend, begun, followed, residual

# A norm counts from three times above the usual one (the source: "up 300 %").
RISE_RATIO = 4.0
SIGMAS = 8.0
# One so far above the usual needs no second one to be believed.
SURE_RATIO = 30.0
NUM_NEEDED = 50
# Smallest noise of the logarithm of the norm to believe.
MIN_LOG_NOISE = 0.02


class GradNorm(NamedTuple):
    """What is known about the gradient norm."""

    trend: Trend = Trend()
    """Of its logarithm."""
    num_high: int = 0
    """High ones in a row; one past ``SURE_RATIO`` is enough, if the run is not known for such."""
    ratio: float = 1.0
    """The last one as a multiple of the usual one."""
    sigmas: float = 0.0
    """The last one's height above the usual one, on the log scale."""
    lone: Lone = Lone()
    """What is known about high ones that came alone, on the log scale."""

    @property
    def is_high(self) -> bool:
        """Whether it has been high for long enough."""
        return self.num_high >= self.lone.num_needed


def heard(norm: GradNorm, value: float) -> GradNorm:
    """What is known after one more gradient norm, finite and above 0."""
    log_norm = math.log(value)
    if norm.trend.num_seen == 0:
        return norm._replace(trend=begun(log_norm))
    seen = residual(norm.trend, log_norm, min_scale=MIN_LOG_NOISE)
    ratio = math.exp(min(seen.distance, 200.0))
    lone, at = norm.lone, norm.trend.num_seen
    is_odd = at > NUM_UNCLIPPED and seen.z > SIGMAS and ratio > RISE_RATIO
    lone = seen_odd(lone, at, seen.distance) if is_odd else seen_usual(lone, at, seen.z)
    is_high = is_odd and at >= NUM_NEEDED
    is_sure = ratio > SURE_RATIO and not lone.explains(seen.distance)
    return GradNorm(
        trend=followed(norm.trend, log_norm, seen, is_skipped=is_high and norm.num_high < 20),
        num_high=norm.num_high + (lone.num_needed if is_sure else 1) if is_high else 0,
        ratio=ratio,
        sigmas=seen.z,
        lone=lone,
    )
