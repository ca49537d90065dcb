"""The CUSUM's limits and its evidence."""

import math

import pytest
from _detector_tools import noise

from slav1.detectors._cusum import cusum, cusum_limit, siegmund_arl0


@pytest.mark.parametrize(
    ("drift", "limits"),
    [
        (0.25, [13.11, 17.70, 22.31, 26.91]),
        (0.5, [7.35, 9.65, 11.96, 14.26]),
        (0.75, [5.05, 6.59, 8.12, 9.66]),
        (1.0, [3.79, 4.94, 6.09, 7.24]),
    ],
)
def test_limits_agree_with_the_table(drift, limits):
    """
    Siegmund's formula, inverted, gives the published limits for ARL0 of 1e4 to 1e7.
    """
    for arl0, limit in zip([1e4, 1e5, 1e6, 1e7], limits, strict=True):
        assert cusum_limit(drift=drift, arl0=arl0) == pytest.approx(limit, abs=0.011)


def test_limit_and_arl0_are_each_others_inverse():
    """
    The limit for an ARL0 has that ARL0.
    """
    assert siegmund_arl0(drift=0.5, limit=cusum_limit(drift=0.5, arl0=3e5)) == pytest.approx(3e5)


@pytest.mark.slow
def test_keeps_its_claim_on_gaussian_noise():
    """
    On white Gaussian noise the mean distance between false alarms is at least 0.8 of what
    the limit was asked for.
    """
    limit = cusum_limit(drift=0.5, arl0=500.0)
    values, score, num_alarms, num_values = noise("gaussian", 1), 0.0, 0, 100_000
    for _ in range(num_values):
        score = cusum(score, next(values), drift=0.5, clip=3.0)
        if score >= limit:
            num_alarms, score = num_alarms + 1, 0.0

    assert num_values / num_alarms > 0.8 * 500.0


def test_one_value_counts_for_little():
    """
    However far out a value lies, it weighs no more than the clip.
    """
    assert cusum(0.0, 1e9, drift=1.0, clip=3.0) == cusum(0.0, 3.0, drift=1.0, clip=3.0) == 2.0
    assert cusum(5.0, -math.inf, drift=1.0, clip=3.0) == 1.0
    assert cusum(1.0, -math.inf, drift=1.0, clip=3.0) == 0.0
