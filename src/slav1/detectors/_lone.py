"""Odd values that a series is known for: high for a moment and usual again by themselves.

A batch now and then from another task, or a loss that is nearly 0 but for a few samples, has
them all the time. There only more of them in a row, or a higher one, says anything.
"""

import math
from typing import NamedTuple

# Values over which they are remembered.
MEMORY = 1024
# One that is higher than this multiple of the known ones is not one of them.
HIGHER_RATIO = 2.0
# Chance that so many of them follow each other by accident.
CHANCE = 1e-5
FEWEST, MOST = 2, 20
# A value this near to the expected one is usual again, in standard deviations.
USUAL_SIGMAS = 3.0


class Lone(NamedTuple):
    """What is known about odd values that came alone; unchanged while there are none."""

    at: int = 0
    """Number of values at which this was so."""
    share: float = 0.0
    """Share of the values that were such ones."""
    height: float = 0.0
    """Rise of the highest, faded, in units of the series."""
    num_open: int = 0
    """Odd values in a row of which it is open whether they were some."""
    open_height: float = 0.0
    """Rise of the highest of those."""

    @property
    def num_needed(self) -> int:
        """Odd values in a row that are more than an accident."""
        if not self.share > 0.0:
            return FEWEST
        least = math.ceil(math.log(CHANCE) / min(math.log(self.share), -0.1))
        return min(MOST, max(FEWEST, least))

    def explains(self, rise: float) -> bool:
        """Whether a single odd value of this rise is as others were that came alone."""
        return rise <= HIGHER_RATIO * self.height


def seen_odd(lone: Lone, at: int, rise: float) -> Lone:
    """What is known after an odd value.

    Args:
        lone: What was known.
        at: Number of values before it.
        rise: Its distance from what was expected.
    """
    share, height = _faded(lone, at)
    return Lone(at, share, height, lone.num_open + 1, max(rise, lone.open_height))


def seen_usual(lone: Lone, at: int, z: float) -> Lone:
    """What is known after a value that was not odd, ``z`` standard deviations up."""
    if not lone.num_open:
        return lone
    share, height = _faded(lone, at)
    if lone.num_open > lone.num_needed or z > USUAL_SIGMAS:
        return Lone(at, share, height)
    gain = 1.0 / min(MEMORY, at + 1)
    return Lone(at, share + gain * (1.0 - share), max(height, lone.open_height))


def _faded(lone: Lone, at: int) -> tuple[float, float]:
    """Share and height as they are known now."""
    if at <= lone.at:
        return lone.share, lone.height
    fading = (1.0 - 1.0 / MEMORY) ** (at - lone.at)
    if at <= MEMORY:
        # All values count alike until there are as many as are remembered.
        return lone.share * lone.at / at, lone.height * fading
    return lone.share * fading, lone.height * fading
