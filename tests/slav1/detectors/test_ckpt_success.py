"""Failing checkpoint writes: what is found, when, and how often by mistake."""

import math
import random

import pytest
from _detector_tools import breaches, watch, watch_from

from slav1.breach import Status
from slav1.detectors import CkptSuccessLiteral, CkptSuccessSequential
from slav1.detectors._bounds import beta_cdf, chance_at_least, clopper_pearson
from slav1.sample import Save

SEQUENTIAL = CkptSuccessSequential()
GAIN = math.log(0.03 / 0.003)
LOSS = math.log(0.97 / 0.997)


def saves(outcomes, *, every_s=60.0):
    return [
        Save(step=i, time_s=every_s * i, succeeded=good, reason="" if good else "The disk is full.")
        for i, good in enumerate(outcomes)
    ]


def run_lengths(share_bad: float, num_alarms: int, seed: int = 0, *, limit: float) -> list[int]:
    """Writes between alarms, jumping from failure to failure as the detector would count."""
    rng = random.Random(seed)
    score, length, found = 0.0, 0, []
    while len(found) < num_alarms:
        gap = int(math.log(1.0 - rng.random()) / math.log(1.0 - share_bad))
        score = max(0.0, score + gap * LOSS) + GAIN
        length += gap + 1
        if score >= limit - 1e-9:
            found.append(length)
            score, length = 0.0, 0
    return found


def test_five_straight_failures_are_a_breach_and_each_a_line():
    """
    Every failed write is a notice; the fifth in a row is a breach.
    """
    found = watch(SEQUENTIAL, saves([True] * 50 + [False] * 5))

    assert [each.status for each in found] == [Status.NOTICE] * 4 + [Status.BREACH]
    assert "The disk is full" in found[0].message
    assert found[-1].evidence["num_failed"] == 5
    assert found[-1].arl0 == 1e5


def test_the_shortcut_counts_as_the_detector_does():
    """
    The simulation below and the detector raise their alarms at the same writes.
    """
    rng = random.Random(3)
    outcomes = [rng.random() > 0.06 for _ in range(4000)]
    events = saves(outcomes)

    score, expected = 0.0, []
    for event in events:
        score = max(0.0, score) + (LOSS if event.succeeded else GAIN)
        if score >= math.log(1e5) - 1e-9:
            expected.append(event.step)
            score = 0.0

    assert [breach.step for breach in breaches(watch(SEQUENTIAL, events))] == expected
    assert len(expected) > 5


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated():
    """
    With exactly the failures that the contract allows, more than a million writes lie between
    two alarms; a hundred thousand are stated.
    """
    lengths = run_lengths(0.003, 60, limit=math.log(SEQUENTIAL.arl0))

    assert sum(lengths) / len(lengths) > 1e6 > SEQUENTIAL.arl0


@pytest.mark.parametrize(("share_bad", "published"), [(0.06, 109), (0.03, 276)])
def test_delays_are_those_published(share_bad, published):
    """
    Runs with 6 % and 3 % of failures are found after about 109 and 276 writes.
    """
    lengths = run_lengths(share_bad, 1500, limit=math.log(SEQUENTIAL.arl0))

    assert sum(lengths) / len(lengths) == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize("num_good", [0, 400])
def test_a_corrupt_write_is_a_breach_at_once(num_good):
    """
    A write that reads back differently is a breach, whatever the rate.
    """
    bad = Save(step=999, time_s=0.0, succeeded=False, is_corrupt=True)

    found = watch(SEQUENTIAL, [*saves([True] * num_good), bad])

    assert [(each.status, each.is_actionable) for each in found] == [(Status.BREACH, True)]
    assert found[0].evidence["kind"] == "corrupt"


def test_ten_good_writes_end_the_incident():
    """
    After a breach ten good writes in a row are a recovery, once.
    """
    state, _ = watch_from(SEQUENTIAL, SEQUENTIAL.start(), saves([False] * 5))

    _, found = watch_from(SEQUENTIAL, state, saves([True] * 30))

    assert [(each.step, each.status) for each in found] == [(9, Status.RECOVERED)]


def test_literal_judges_the_last_five_minutes():
    """
    The literal rule breaches at any failure among few writes, and recovers once it is five
    minutes past.
    """
    found = watch(CkptSuccessLiteral(), saves([True, False, True, True, True, True, True, True]))

    assert [(each.step, each.status) for each in found] == [
        (1, Status.BREACH),
        (7, Status.RECOVERED),
    ]
    assert found[0].statistic == 0.5


def test_literal_allows_one_failure_in_334():
    """
    Among enough writes a share of failures under 0.3 % is kept.
    """
    assert not watch(CkptSuccessLiteral(), saves([True] * 333 + [False], every_s=0.5))


def test_bounds_are_those_of_the_tables():
    """
    Two good writes of two prove a rate of 22 % with 95 %, 334 allow one failure, and 997 clean
    ones prove the contract's rate.
    """
    assert clopper_pearson(2, 2, confidence=0.95) == (pytest.approx(0.2236, abs=1e-4), 1.0)
    assert clopper_pearson(996, 996, confidence=0.95)[0] < 0.997
    assert clopper_pearson(998, 998, confidence=0.95)[0] >= 0.997
    assert clopper_pearson(0, 0, confidence=0.95) == (0.0, 1.0)
    assert chance_at_least(0.997, 2, 2) == pytest.approx(0.09, abs=0.005)
    # A published table of the incomplete beta function.
    assert beta_cdf(0.5, 2.0, 3.0) == pytest.approx(0.6875)
    assert beta_cdf(0.3, 0.5, 0.5) == pytest.approx(2 / math.pi * math.asin(math.sqrt(0.3)))


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"target_ratio": 1.0}, ["target_ratio", "1.0"]),
        ({"bad_ratio": 0.999}, ["bad_ratio", "0.999"]),
        ({"arl0": 5.0}, ["arl0", "5.0"]),
        ({"recovery_saves": 0}, ["recovery_saves", "0"]),
    ],
)
def test_impossible_settings_are_refused(settings, parts):
    """
    A setting out of range is refused with its name and value.
    """
    with pytest.raises(ValueError, match=f"(?s){'.*'.join(parts)}"):
        CkptSuccessSequential(**settings)
