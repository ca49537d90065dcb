"""The check that all time limits of this folder share."""

import math

LONGEST_S = 7 * 24 * 3600.0
"""A week: what is meant to be longer is meant to be no limit."""


def positive_seconds(name: str, value: object) -> float:
    """Returns a time limit as a float.

    Args:
        name: The setting, for the error text.
        value: What the user gave, in seconds.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is not above 0, or longer than a week.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{name} must be a number of seconds, got {type(value).__name__} {value!r}."
        )
    if not (math.isfinite(value) and 0 < value <= LONGEST_S):
        raise ValueError(
            f"{name} must be above 0 and at most {LONGEST_S:.0f} seconds (a week), got {value}."
        )
    return float(value)
