"""Runs with single odd steps that heal by themselves: no flood of false alarms, no blindness."""

import math
import random

import pytest
from _detector_tools import breaches, brief, losses, round_of, watch

from slav1.breach import Status
from slav1.detectors import LossVarianceSequential
from slav1.detectors._lone import FEWEST, MEMORY, Lone, seen_odd, seen_usual


def another_task(rng: random.Random, share: float) -> float:
    return (3.0 if rng.random() < share else 1.0) * (1.0 + 0.05 * rng.gauss(0, 1))


def nearly_learned(rng: random.Random) -> float:
    return 0.1 * rng.random() if rng.random() < 0.05 else 1e-6 * (1.0 + rng.random())


def hinge(rng: random.Random) -> float:
    return max(0.0, rng.gauss(-1.0, 1.0))


HEALTHY = {
    "a task in 100": lambda rng: another_task(rng, 0.01),
    "a task in 20": lambda rng: another_task(rng, 0.05),
    "a task in 10": lambda rng: another_task(rng, 0.1),
    "nearly learned": nearly_learned,
    "hinge": hinge,
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_batches_that_are_odd_by_nature_are_learned(kind):
    """
    Where single losses far above the others belong to a run, at most the first is a breach to
    act on, and soon none is worth a line any more.
    """
    for seed in range(2):
        rng = random.Random(seed)
        found = watch(LossVarianceSequential(), losses(HEALTHY[kind](rng) for _ in range(3_000)))

        assert len([breach for breach in breaches(found) if breach.is_actionable]) <= 1
        assert len(found) <= 8


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_a_spike_among_them_is_found_all_the_same(share):
    """
    A spike that lasts is told within five steps, also where single steps as high are usual.
    """
    rng = random.Random(3)
    series = [another_task(rng, share) + (3.0 if 2_000 <= t < 2_030 else 0) for t in range(2_500)]

    found = [b for b in watch(LossVarianceSequential(), losses(series)) if b.step >= 2_000]

    breach = breaches(found)[0]
    assert breach.step < 2_005 and breach.is_actionable
    assert 2_030 <= found[-1].step <= 2_045 and found[-1].status is Status.RECOVERED


def test_a_spike_is_as_good_as_the_one_before():
    """
    Spikes that last and come back are each told at their first step: they teach nothing about
    single odd steps.
    """
    rng = random.Random(4)
    series = [
        2.0 + 0.03 * rng.gauss(0, 1) + (2.0 * math.exp(-(t % 500) / 10) if t >= 500 else 0.0)
        for t in range(2_000)
    ]

    steps = [breach.step for breach in breaches(watch(LossVarianceSequential(), losses(series)))]

    assert steps == [500, 1_000, 1_500]


def test_a_higher_one_is_none_of_them():
    """
    A single step more than twice as high as those that a run is known for is a breach at once.
    """
    rng = random.Random(5)
    series = [another_task(rng, 0.02) for _ in range(1_000)] + [12.0]

    assert breaches(watch(LossVarianceSequential(), losses(series)))[-1].step == 1_000


@pytest.mark.parametrize(("share", "ratio"), [(0.01, 40.0), (0.05, 10.0)])
def test_gradient_norms_of_another_task_are_learned_too(share, ratio):
    """
    Single gradient norms far above the others ask for a snapshot at most once.
    """
    rng = random.Random(6)
    rounds = [
        round_of(
            t,
            2.0 + 0.03 * rng.gauss(0, 1),
            grad_norm=(ratio if rng.random() < share else 1.0) * math.exp(0.1 * rng.gauss(0, 1)),
        )
        for t in range(3_000)
    ]

    assert len(breaches(watch(LossVarianceSequential(), rounds))) <= 1


def test_noise_that_stays_is_what_is_usual():
    """
    Noise that grows for good is one breach and one recovery, not one every two hundred steps;
    when it grows again that is another.
    """
    rng = random.Random(7)
    scales = [0.0] * 500 + [0.03] * 1_500 + [0.2] * 1_500
    series = [2.0 + scale * rng.gauss(0, 1) for scale in scales]

    found = [
        b for b in watch(LossVarianceSequential(), losses(series)) if b.status.value != "notice"
    ]

    assert [status for _, status in brief(found)] == ["breach", "recovered"] * 2
    assert found[0].step < 550 and 2_000 < found[2].step < 2_070


@pytest.mark.parametrize("every", [1, 10])
def test_gradients_that_change_for_good_are_told_once(every):
    """
    Where half of the layers are frozen from one step on, or thawed, the density or the norm of
    the gradient is another for good: one breach and one recovery, however rarely it is read.
    """
    rng = random.Random(8)

    def run(name: str, before: float, after: float):
        rounds = [
            round_of(
                t,
                2.0 + 0.03 * rng.gauss(0, 1),
                **({name: before if t < 1_000 else after} if t % every == 0 else {}),
            )
            for t in range(3_000)
        ]
        return [status for _, status in brief(watch(LossVarianceSequential(), rounds))]

    assert run("zero_share", 0.1, 0.55) == ["breach", "recovered"]
    assert run("grad_norm", 1.0, 8.0) == ["breach", "recovered"]


def test_a_loss_that_jumps_and_stays_flat_settles():
    """
    A model that collapses to a loss without noise is one breach, which ends at the new level.
    """
    rng = random.Random(9)
    series = [2.0 + 0.03 * rng.gauss(0, 1) for _ in range(1_000)] + [10.8] * 600

    found = watch(LossVarianceSequential(), losses(series))

    assert [status for _, status in brief(found)] == ["breach", "recovered"]
    assert "new level" in found[1].message


def test_noise_that_comes_with_a_new_level_is_none_of_its_own():
    """
    A loss three times as high with noise three times as large is told once, by its level.
    """
    rng = random.Random(10)
    series = [(1 if t < 1_000 else 3) * math.exp(0.3 * rng.gauss(0, 1)) for t in range(4_000)]

    found = [
        b for b in watch(LossVarianceSequential(), losses(series)) if b.status.value != "notice"
    ]

    assert [status for _, status in brief(found)] == ["breach", "recovered"]


def test_what_is_known_fades():
    """
    What a run was known for is forgotten where it does not come again.
    """
    lone = Lone()
    for at in range(100, 1_100, 20):
        lone = seen_usual(seen_odd(lone, at, 3.0), at + 1, 0.0)
    later = seen_odd(lone, 1_100 + 10 * MEMORY, 3.0)

    assert lone.num_needed > FEWEST and lone.explains(5.0)
    assert later.num_needed == FEWEST and not later.explains(3.0)
