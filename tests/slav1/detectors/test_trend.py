"""Following a series."""

from itertools import pairwise

import pytest
from _detector_tools import noise

from slav1.detectors._trend import Trend, begun, followed, residual


def follow(values) -> Trend:
    iterator = iter(values)
    trend = begun(next(iterator))
    for value in iterator:
        seen = residual(trend, value, min_scale=1e-9)
        trend = followed(trend, value, seen, is_skipped=False)
    return trend


def test_learns_level_and_noise():
    """
    After a few hundred values level and standard deviation are known to some percent.
    """
    values = noise("gaussian", 3)
    trend = follow(2.0 + 0.03 * next(values) for _ in range(1_000))

    assert trend.level == pytest.approx(2.0, abs=0.02)
    assert trend.scale == pytest.approx(0.03, rel=0.35)


def test_follows_a_fall_without_taking_it_for_noise():
    """
    A series that falls steadily has the noise of its residuals, not of its fall.
    """
    values = noise("gaussian", 4)
    trend = follow(11.0 - 0.02 * i + 0.03 * next(values) for i in range(300))

    assert trend.scale < 0.1
    assert trend.level + trend.slope == pytest.approx(11.0 - 0.02 * 300, abs=0.15)


def test_one_odd_value_hardly_moves_anything():
    """
    A value 100 sigmas out moves the level by less than a tenth of one.
    """
    values = noise("gaussian", 5)
    before = follow(next(values) for _ in range(500))

    seen = residual(before, 100.0, min_scale=1e-9)
    after = followed(before, 100.0, seen, is_skipped=False)

    assert abs(after.level - before.level) < 0.15
    assert after.scale < 1.1 * before.scale


def test_prewhitening_takes_out_what_the_last_value_foretold():
    """
    On noise with a correlation of 0.5 the whitened values have almost none left.
    """
    values = noise("ar", 6)
    trend, white = begun(next(values)), []
    for _ in range(4_000):
        value = next(values)
        seen = residual(trend, value, min_scale=1e-9)
        trend = followed(trend, value, seen, is_skipped=False)
        white.append(seen.white)
    white = white[500:]

    power = sum(w * w for w in white)
    correlation = sum(a * b for a, b in pairwise(white)) / power
    assert abs(correlation) < 0.12


def test_a_fall_that_ends_is_no_rise():
    """
    Where a steep fall stops, the values lie above the prediction but not above the last
    ones: they are no rise.
    """
    trend = follow(11.0 - 0.0233 * i for i in range(300))

    seen = residual(trend, 4.05, min_scale=1e-3)

    assert not seen.is_rise
