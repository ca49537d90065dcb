"""Tells whether the noise of a series grows, whatever its trend does."""

import math
from typing import NamedTuple

from slav1.detectors._cusum import clipped, cusum, cusum_limit

# Differences averaged into one variance.
BLOCK = 8
# Variances that the usual one is learned from before any is judged.
NUM_BLOCKS_NEEDED = 8
GAIN = 0.01
DRIFT = 0.75
CLIP = 3.0
# Most that one difference may weigh, in standard deviations of the series.
DIFFERENCE_CLIP_SIGMAS = 4.5
# Smallest spread of log variances to believe; that of normal noise is about 0.6.
MIN_SPREAD = 0.3
DEVIATION_TO_SIGMA = 1.2533


class Noise(NamedTuple):
    """What is known about the noise."""

    last: float = 0.0
    num_in_block: int = 0
    total: float = 0.0
    """Half squared differences of the block so far."""
    num_blocks: int = 0
    usual: float = 0.0
    """Usual logarithm of a block's variance."""
    spread: float = 0.5
    """Standard deviation of that logarithm."""
    score: float = 0.0
    height: float = 0.0
    """How far the last block lay above the usual, in standard deviations."""


def listened(noise: Noise, value: float, *, scale: float) -> Noise:
    """The noise after one more value.

    Variances are mean square successive differences, which a trend hardly touches, and
    are compared by their logarithms, whose spread depends little on the noise itself.

    Args:
        noise: What was known.
        value: A finite number, at most 1e60 in size.
        scale: Standard deviation of the series around its trend, above 0.

    Source:
        von Neumann et al., "The Mean Square Successive Difference", Annals of
        Mathematical Statistics 12(2), 1941.
    """
    difference = clipped(value - noise.last, DIFFERENCE_CLIP_SIGMAS * scale)
    total = noise.total + difference * difference / 2.0
    after = Noise(value, noise.num_in_block + 1, total, *noise[3:])
    return _judged(after, scale) if after.num_in_block == BLOCK else after


def noise_limit(arl0: float) -> float:
    """The score at which there is an alarm, for ``arl0`` values between false ones."""
    return cusum_limit(drift=DRIFT, arl0=max(2.0, arl0 / BLOCK))


def _judged(noise: Noise, scale: float) -> Noise:
    """Closes a block."""
    log_variance = math.log(max(noise.total / BLOCK, 1e-6 * scale * scale, 1e-300))
    is_first = noise.num_blocks == 0
    usual = log_variance if is_first else noise.usual
    distance = log_variance - usual
    height = distance / noise.spread
    is_judged = noise.num_blocks >= NUM_BLOCKS_NEEDED
    step = clipped(distance, CLIP * noise.spread)
    spread_gain = max(GAIN, 1.0 / (noise.num_blocks + 4))
    spread = noise.spread + spread_gain * (DEVIATION_TO_SIGMA * abs(step) - noise.spread)
    return noise._replace(
        num_in_block=0,
        total=0.0,
        num_blocks=noise.num_blocks + 1,
        usual=usual + max(GAIN, 1.0 / (noise.num_blocks + 1)) * step,
        spread=noise.spread if is_first else max(MIN_SPREAD, spread),
        score=cusum(noise.score, height, drift=DRIFT, clip=CLIP) if is_judged else 0.0,
        height=height if is_judged else 0.0,
    )
