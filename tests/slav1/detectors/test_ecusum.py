"""The e-CUSUM's evidence and its claim."""

import random

import pytest

from slav1.detectors._ecusum import ecusum, ecusum_limit


def alarms(chance: float, *, null_ratio: float, ratios: tuple[float, ...], arl0: float, num: int):
    rng = random.Random(f"{chance} {null_ratio}")
    limit = ecusum_limit(arl0=arl0, num_tests=len(ratios))
    scores: tuple[float, ...] = ()
    at = []
    for i in range(num):
        scores = ecusum(scores, rng.random() < chance, null_ratio=null_ratio, ratios=ratios)
        if max(scores) >= limit:
            at.append(i)
            scores = ()
    return at


@pytest.mark.slow
@pytest.mark.parametrize(
    ("null_ratio", "ratios"), [(0.5, (0.65, 0.8, 0.97)), (0.25, (0.5, 0.8, 0.97)), (0.01, (0.1,))]
)
def test_keeps_its_claim(null_ratio, ratios):
    """
    With the event exactly as frequent as allowed, alarms are at least as far apart as
    claimed, whatever the shares looked for.
    """
    found = alarms(null_ratio, null_ratio=null_ratio, ratios=ratios, arl0=2_000.0, num=60_000)

    assert 60_000 / max(1, len(found)) > 2_000.0


def test_finds_what_it_looks_for():
    """
    An event twice as frequent as allowed is found within a few hundred.
    """
    found = alarms(0.5, null_ratio=0.25, ratios=(0.5, 0.8, 0.97), arl0=1e6, num=2_000)

    assert found and found[0] < 300


def test_six_straight_misses_are_enough():
    """
    The figures of the liveness rule, 5e-4 against 5e-3 at ARL0 1e6, alarm at the sixth miss
    in a row.
    """
    scores: tuple[float, ...] = ()
    reached = []
    for _ in range(6):
        scores = ecusum(scores, True, null_ratio=5e-4, ratios=(5e-3,))
        reached.append(max(scores) >= ecusum_limit(arl0=1e6, num_tests=1))

    assert reached == [False] * 5 + [True]
