"""Three sequential tests on one series of losses: outlier, shift and variance."""

import math
from typing import NamedTuple

from slav1.detectors._cusum import HEAVY_TAIL_RATIO, clipped, cusum, cusum_limit
from slav1.detectors._lone import Lone, seen_odd, seen_usual
from slav1.detectors._noise import Noise, listened, noise_limit
from slav1.detectors._trend import (
    CLIP_SIGMAS,
    LARGEST,
    NUM_UNCLIPPED,
    Trend,
    begun,
    followed,
    residual,
)

# Losses seen before any is judged.
NUM_NEEDED = 50
# Smallest noise to believe, as a share of the loss; keeps a flat loss quiet.
MIN_NOISE_RATIO = 1e-3
SHIFT_DRIFT = 1.0
# Outliers in a row that leave the trend alone; more of them are a new level.
MAX_SKIPPED = 20


class LossTests(NamedTuple):
    """What the tests remember."""

    trend: Trend = Trend()
    noise: Noise = Noise()
    shift: float = 0.0
    """Score of the CUSUM of the distances."""
    num_outliers: int = 0
    """Outliers in a row."""
    lone: Lone = Lone()


class Reading(NamedTuple):
    """What the tests say about one loss."""

    loss: float
    expected: float
    scale: float
    """Standard deviation of the noise."""
    z: float
    """Height above the expected loss, in standard deviations."""
    is_rise: bool
    """Whether the loss is judged and lies above the recent ones."""
    is_outlier: bool
    shift: float
    shift_limit: float
    variance: float
    variance_limit: float
    height: float
    """How far the noise lies above the usual one, in its standard deviations."""
    lone: Lone
    """What is known about outliers that come alone."""

    @property
    def has_shifted(self) -> bool:
        return self.is_rise and self.shift >= self.shift_limit

    @property
    def is_loud(self) -> bool:
        return self.variance >= self.variance_limit


def observe_loss(
    memory: LossTests, loss: float, *, outlier_sigmas: float, arl0: float
) -> tuple[LossTests, Reading | None]:
    """Takes in one finite loss; returns what is remembered after it and what it means.

    A score that has reached its limit starts again from 0. There is no reading of the
    first loss: nothing was expected.
    """
    loss = clipped(loss, LARGEST)
    trend = memory.trend
    if trend.num_seen == 0:
        return memory._replace(trend=begun(loss)), None
    seen = residual(trend, loss, min_scale=max(MIN_NOISE_RATIO * abs(trend.level), 1e-12))
    is_judged = trend.num_seen >= NUM_NEEDED
    is_odd = trend.num_seen > NUM_UNCLIPPED and seen.is_rise and seen.z > outlier_sigmas
    is_outlier = is_judged and is_odd
    # Odd values now and then make the scale, which leaves them out, too small for a sum of them.
    white = seen.white / math.sqrt(max(1.0, trend.power))
    shift = cusum(memory.shift, white, drift=SHIFT_DRIFT, clip=CLIP_SIGMAS)
    noise = memory.noise
    if trend.num_seen == NUM_UNCLIPPED:
        noise = Noise(last=loss)
    elif trend.num_seen > NUM_UNCLIPPED:
        noise = listened(noise, loss, scale=seen.scale)
    lone, at = memory.lone, trend.num_seen
    lone = seen_odd(lone, at, seen.distance) if is_odd else seen_usual(lone, at, seen.z)
    reading = Reading(
        loss=loss,
        expected=loss - seen.distance,
        scale=seen.scale,
        z=seen.z,
        is_rise=is_judged and seen.is_rise,
        is_outlier=is_outlier,
        shift=shift if is_judged else 0.0,
        shift_limit=cusum_limit(drift=SHIFT_DRIFT, arl0=HEAVY_TAIL_RATIO * arl0),
        variance=noise.score if is_judged else 0.0,
        variance_limit=noise_limit(arl0),
        height=noise.height,
        lone=lone,
    )
    is_skipped = is_outlier and memory.num_outliers < MAX_SKIPPED
    after = LossTests(
        trend=followed(trend, loss, seen, is_skipped=is_skipped),
        noise=noise._replace(score=0.0) if reading.is_loud else noise,
        shift=0.0 if reading.shift >= reading.shift_limit or not is_judged else shift,
        num_outliers=memory.num_outliers + 1 if is_outlier else 0,
        lone=lone,
    )
    return after, reading
