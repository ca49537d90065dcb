"""Follows the level, slope and noise of a series, and says how far a value is off."""

import math
from typing import NamedTuple

from slav1.detectors._cusum import clipped

# Gains, per value. A gain of g remembers about 1/g values.
LEVEL_GAIN = 0.03
# The slope moves by this share of what the level does.
SLOPE_RATIO = 0.005
SCALE_GAIN = 0.02
RECENT_GAIN = 0.02
CORRELATION_GAIN = 1.0 / 256.0
BIAS_GAIN = 0.1
# Used while the values lie on one side of the prediction for long without rising.
CATCH_UP_GAIN = 0.2
# Values that are taken as they are, until there is a scale to clip with.
NUM_UNCLIPPED = 20
# Most that one value may move anything, in standard deviations.
CLIP_SIGMAS = 3.0
# Mean absolute deviation to standard deviation, for normal data.
DEVIATION_TO_SIGMA = 1.2533
# Values beyond it are taken as it, so that not even the square of a variance overflows.
LARGEST = 1e60


class Trend(NamedTuple):
    """What is known about a series."""

    num_seen: int = 0
    level: float = 0.0
    slope: float = 0.0
    scale: float = 0.0
    """Standard deviation around the prediction, in units of the series."""
    bias: float = 0.0
    """Lasting distance of the values from the prediction."""
    recent: float = 0.0
    """Plain mean of about the last 50 values."""
    last_z: float = 0.0
    power: float = 1.0
    correlation: float = 0.0


class Residual(NamedTuple):
    """How one value compares with what was expected."""

    distance: float
    """Value minus prediction."""
    scale: float
    """Standard deviation that it was judged with."""
    z: float
    """Distance in standard deviations."""
    white: float
    """Clipped ``z`` without what the value before foretold."""
    is_rise: bool
    """Whether the value lies above the recent ones, and not only above a prediction
    that went on falling."""


def residual(trend: Trend, value: float, *, min_scale: float) -> Residual:
    """Compares a value with the trend before it.

    Args:
        trend: What is known; at least one value.
        value: A finite number.
        min_scale: Smallest standard deviation to believe, above 0.
    """
    value = clipped(value, LARGEST)
    # Taken apart at once: this runs several times for each rank and step.
    _, level, slope, scale, _, recent, last_z, power, correlation = trend
    distance = value - level - slope
    scale = max(scale, min_scale)
    z = distance / scale
    phi = clipped(correlation / max(power, 1e-9), 0.95)
    white = (clipped(z, CLIP_SIGMAS) - phi * last_z) / math.sqrt(1.0 - phi * phi)
    return Residual(distance, scale, z, white, value > recent)


def followed(trend: Trend, value: float, seen: Residual, *, is_skipped: bool) -> Trend:
    """The trend after a value.

    Level, slope and scale move by clipped distances, so one odd value hardly moves
    them. They catch up fast with a series that falls, or has stopped falling, because
    only a rise is worth remembering the old level for.

    Args:
        trend: What was known; at least one value.
        value: A finite number.
        seen: Its :func:`residual`.
        is_skipped: Whether the value is an outlier that says nothing about the trend.

    Source:
        Holt's linear trend, with the residuals clipped (robust Holt: Gelper, Fried and
        Croux, Journal of Forecasting 29(3), 2010).
    """
    value = clipped(value, LARGEST)
    z = clipped(seen.z, CLIP_SIGMAS)
    num_seen, level, slope, scale, bias, recent, last_z, power, correlation = trend
    by_count = 1.0 / (num_seen + 1)
    memory = max(CORRELATION_GAIN, by_count)
    if not is_skipped:
        level, slope, scale, bias = _moved(trend, seen)
    return Trend(
        num_seen + 1,
        level,
        slope,
        scale,
        bias,
        recent + max(RECENT_GAIN, by_count) * (value - recent),
        z,
        power + memory * (z * z - power),
        correlation + memory * (z * last_z - correlation),
    )


def begun(value: float) -> Trend:
    """The trend after the first value, a finite number."""
    value = clipped(value, LARGEST)
    return Trend(num_seen=1, level=value, recent=value)


def _moved(trend: Trend, seen: Residual) -> tuple[float, float, float, float]:
    """Level, slope, scale and bias after a value."""
    distance, scale = seen.distance, seen.scale
    num_seen, level, slope, spread_scale, bias = trend[:5]
    reach = CLIP_SIGMAS * scale
    near_bias = bias + clipped(distance - bias, reach)
    is_behind = abs(bias) > scale and not (distance > 0.0 and seen.is_rise)
    if num_seen < NUM_UNCLIPPED:
        step, spread = distance, abs(distance)
    else:
        step = near_bias if is_behind else clipped(distance, reach)
        spread = abs(near_bias - bias)
    gain = max(CATCH_UP_GAIN if is_behind else LEVEL_GAIN, 1.0 / (num_seen + 1))
    scale_gain = max(SCALE_GAIN, 1.0 / num_seen)
    bias += BIAS_GAIN * (step - bias)
    return (
        level + slope + gain * step,
        slope + SLOPE_RATIO * gain * step,
        spread_scale + scale_gain * (DEVIATION_TO_SIGMA * spread - spread_scale),
        bias * (1.0 - gain) if is_behind else bias,
    )
