"""Learning durations, and the limit past their tail."""

import math
import random
from statistics import median

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
@pytest.mark.parametrize("pause_s", [0.2, 0.5])
def test_keeps_its_claim(pause_s):
    """
    With one pause in 1,000 steps, exponentially long, healthy pauses over the limit come up
    no more often than wanted (0.8 of the claim) in the median run, and the limit is no
    more than twice the shortest that would do.
    """
    limits_s = [
        tail_limit_s(learned(noisy(40_000, pause_s=pause_s, seed=seed)), **DAY) for seed in range(5)
    ]
    shortest_s = pause_s * math.log(1e-3 * DAY["num_per_day"] / DAY["false_alarms_per_day"])

    rates = [1e-3 * DAY["num_per_day"] * math.exp(-limit_s / pause_s) for limit_s in limits_s]
    assert median(rates) < DAY["false_alarms_per_day"] / 0.8
    assert median(limits_s) < 2 * shortest_s


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
