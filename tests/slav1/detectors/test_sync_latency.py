"""Slow gradient syncs, both forms of the rule."""

import random
from typing import Any

import pytest
from _detector_tools import breaches, brief, watch

from slav1.breach import Status
from slav1.detectors import SyncLatencyLearned, SyncLatencyLiteral
from slav1.sample import Sample

both = pytest.mark.parametrize("detector", [SyncLatencyLiteral(), SyncLatencyLearned()])


def syncs(lengths_ms: list[float | None], **others: Any) -> list[Sample]:
    return [
        Sample(
            rank=0,
            step=step,
            time_s=float(step),
            sync_s=None if length is None else length / 1000,
            **others,
        )
        for step, length in enumerate(lengths_ms)
    ]


def usual_syncs(num: int, *, seed: int = 0, ratio_after: float = 1.0, after: int = 10**9):
    rng = random.Random(seed)
    return [
        20.0 * rng.lognormvariate(0.0, 0.2) * (ratio_after if i >= after else 1.0)
        for i in range(num)
    ]


@both
def test_three_in_a_row_are_a_breach(detector):
    """
    The third sync over 800 ms in a row is the breach, and the first one at or under the
    limit the recovery.
    """
    lengths: list[float | None] = [900, 900, 801, 5000, 800, 10]

    assert brief(watch(detector, syncs(lengths))) == [(2, "breach"), (4, "recovered")]


@both
def test_any_sync_at_the_limit_starts_the_count_again(detector):
    """
    Two long ones, one of exactly 800 ms, two long ones: nothing.
    """
    assert watch(detector, syncs([900, 900, 800, 900, 900, 20])) == []


@both
def test_a_sync_that_was_not_measured_counts_neither_way(detector):
    """
    A gap in the measurements neither completes nor breaks a row.
    """
    assert brief(watch(detector, syncs([900, None, 900, None, 900]))) == [(4, "breach")]


def test_literal_counts_the_first_steps_and_learned_does_not():
    """
    Warm-up steps connect and compile: the learned form leaves them out.
    """
    warmup = syncs([900, 900, 900, 900], is_warmup=True)

    assert brief(watch(SyncLatencyLiteral(), warmup)) == [(2, "breach")]
    assert watch(SyncLatencyLearned(), warmup) == []


def test_learned_finds_a_lasting_slowdown_far_under_the_fixed_limit():
    """
    Syncs of 20 ms that become 50 ms are found within 20 steps and only logged; the
    incident ends when they are short again.
    """
    slow = usual_syncs(400, ratio_after=2.5, after=300)
    found = watch(SyncLatencyLearned(), syncs([*slow, *usual_syncs(100, seed=1)]))

    assert [b.status for b in found] == [Status.BREACH, Status.RECOVERED]
    assert 300 <= found[0].step < 320
    assert not found[0].is_actionable
    assert 1.5 < found[0].evidence["present_ms"] / found[0].evidence["usual_ms"] < 4.0
    assert 400 <= found[1].step < 430


def test_learned_says_nothing_about_a_change_that_does_not_matter():
    """
    Syncs that become 20 % longer, and single long ones, are not worth a word.
    """
    lengths = usual_syncs(600, ratio_after=1.2, after=300)
    lengths[200] = lengths[450] = 700.0

    assert watch(SyncLatencyLearned(), syncs(lengths)) == []


@pytest.mark.slow
def test_learned_keeps_its_claim():
    """
    With every effect worth a word, healthy syncs give false alarms no closer together than
    0.8 of ARL0.
    """
    detector = SyncLatencyLearned(arl0=2_000, min_slowdown_ratio=1.0, min_excess_ms=0.0)

    found = breaches(watch(detector, syncs(usual_syncs(30_000))))

    assert 30_000 / max(1, len(found)) > 0.8 * 2_000


def test_refuses_impossible_settings():
    """
    The text names the setting and the value.
    """
    with pytest.raises(ValueError, match="limit_ms must be above 0 milliseconds, got 0"):
        SyncLatencyLiteral(limit_ms=0)
    with pytest.raises(ValueError, match="consecutive must be at least 1"):
        SyncLatencyLearned(consecutive=0)
    with pytest.raises(ValueError, match=r"min_slowdown_ratio must be at least 1, got 0\.5"):
        SyncLatencyLearned(min_slowdown_ratio=0.5)
