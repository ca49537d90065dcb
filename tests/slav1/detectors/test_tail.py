"""Learning durations, and the limit past their tail."""

import random

import pytest

from slav1.detectors._tail import MAX_COUNTED, Durations, learn, tail_limit_s, typical_s

DAY = {"num_per_day": 86_400 / 0.02, "false_alarms_per_day": 0.1}


def learned(values) -> Durations:
    durations = Durations()
    for value in values:
        durations = learn(durations, value)
    return durations


def noisy(num: int, *, pause_s: float = 0.0, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    values = []
    for _ in range(num):
        value = 0.02 * rng.lognormvariate(0.0, 0.1)
        if pause_s and rng.random() < 1e-3:
            value += rng.expovariate(1.0 / pause_s)
        values.append(value)
    return values


def test_median_is_one_bin_exact():
    """
    The typical duration is the median, at most 5 % too long.
    """
    assert 0.02 <= typical_s(learned([0.02] * 51 + [5.0] * 50)) <= 0.02 * 1.05


def test_one_compilation_does_not_move_the_limit():
    """
    Two steps a hundred times as long as the others leave the limit where it was.
    """
    values = noisy(500)

    clean = tail_limit_s(learned(values), **DAY)
    spoilt = tail_limit_s(learned([*values, 3.0, 8.0]), **DAY)

    assert spoilt < 1.5 * clean < 0.5


@pytest.mark.slow
def test_limit_follows_the_pauses_of_the_machine():
    """
    With one pause of 0.2 s on average in 1,000 steps the limit is near the exact 1.9 s, and
    grows with longer pauses.
    """
    short = tail_limit_s(learned(noisy(40_000, pause_s=0.2)), **DAY)
    longer = tail_limit_s(learned(noisy(40_000, pause_s=0.5)), **DAY)

    assert 1.5 < short < 3.5
    assert 1.6 * short < longer


def test_few_durations_are_enough_for_a_limit():
    """
    Thirty equal durations have a limit above them, and not far above.
    """
    assert 0.02 < tail_limit_s(learned([0.02] * 30), **DAY) < 0.2


def test_memory_is_bounded():
    """
    Durations of every size fill at most a few hundred bins.
    """
    rng = random.Random(1)
    durations = learned(10.0 ** rng.uniform(-12, 12) for _ in range(5_000))

    assert len(durations.bins) < 600
    assert durations.bins == tuple(sorted(set(durations.bins)))


def test_old_durations_fade_but_keep_their_tail():
    """
    When the memory is full every count is halved; the share of the longest ones stays.
    """
    full = Durations(bins=(0, 10, 20), counts=(MAX_COUNTED - 101, 100, 1), num_counted=MAX_COUNTED)

    halved = learn(full, 1.0)

    assert halved.num_counted == pytest.approx(MAX_COUNTED / 2, abs=1)
    assert sum(halved.counts[1:]) == 50


def test_what_is_no_duration_is_left_out():
    """
    Negative numbers and NaN teach nothing.
    """
    assert learned([-1.0, float("nan")]) == Durations()
