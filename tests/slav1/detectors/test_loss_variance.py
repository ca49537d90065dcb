"""The sequential tests on the loss, on made-up runs."""

import math
import random
from itertools import islice
from statistics import median

import pytest
from _detector_tools import (
    NOISES,
    breaches,
    brief,
    losses,
    noise,
    round_of,
    watch,
)

from slav1.breach import Status
from slav1.detectors import LossVarianceSequential
from slav1.detectors._loss_report import heavy_tail_arl0
from slav1.detectors._loss_tests import LossTests, observe_loss

SIGMA = 0.03
# Every rise that is statistically certain is a breach: nothing hides behind its size.
CERTAIN = LossVarianceSequential(min_rise_ratio=0.0)


def power_law(step: int) -> float:
    return 2.0 + 6.0 / math.sqrt(1.0 + step / 200.0)


def noisy(kind: str, seed: int, num: int, change=lambda k, e: e, *, onset: int = 10**9):
    """Losses late in a training, changed from ``onset`` on, in sigmas."""
    values = noise(kind, seed)
    series = []
    for i in range(num):
        e = next(values)
        series.append(power_law(6_000 + i) + SIGMA * (e if i < onset else change(i - onset, e)))
    return series


def delays(change, *, num_runs: int = 9) -> list[int]:
    found = []
    for seed in range(num_runs):
        onset = 600 + seed % 8
        run = losses(noisy("t4", seed, onset + 300, change, onset=onset))
        steps = [b.step for b in breaches(watch(CERTAIN, run)) if b.step >= onset]
        found.append(steps[0] - onset if steps else 10_000)
    return found


def schedule(seed: int, sigma: float, *, is_straight: bool):
    """Losses of a healthy run with a restarted learning rate and a new epoch."""
    values = noise("gaussian", seed)
    series = []
    for t in range(3_000):
        level = 11 - 7 * min(t, 300) / 300 if is_straight else 4 + 7 * math.exp(-t / 75)
        if 1_000 <= t < 1_020:
            level += 0.5 * (t - 1_000) / 20
        elif 1_020 <= t < 1_100:
            level += 0.5 * (1_100 - t) / 80
        if t >= 2_000:
            level -= 0.3
        series.append(level + sigma * next(values) * (0.7 if t >= 2_000 else 1.0))
    return series


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "limit"),
    [
        ("5 sigma spike", lambda k, e: e + 5 * math.exp(-k / 20), 5),
        ("level +4 sigma", lambda k, e: e + 4, 5),
        ("ramp 0.1 sigma a step", lambda k, e: e + 0.1 * k, 30),
        ("noise sd x 2.2", lambda k, e: 2.2 * e, 70),
    ],
)
def test_finds_what_moves_in_time(name, change, limit):
    """
    Spikes, steps, ramps and growing noise are found in every run, in the median within the
    published number of steps.
    """
    found = delays(change)

    assert max(found) < 300, name
    assert median(found) <= limit, name


@pytest.mark.slow
@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("first", [0, 5_000])
def test_is_silent_on_healthy_noise(kind, first):
    """
    No breach in 10,000 healthy steps, from the first step of a training or later, whatever
    the noise.
    """
    values = noise(kind, 20)
    run = losses(power_law(t) + SIGMA * next(values) for t in range(first, first + 10_000))

    assert breaches(watch(CERTAIN, run)) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gaussian", "ar", "t4"])
def test_keeps_its_claims(kind):
    """
    Shift and variance give false alarms at least 0.8 of ARL0 apart, at a reduced ARL0.
    """
    values, memory, num_shifted, num_loud = noise(kind, 21), LossTests(), 0, 0
    for loss in (2.0 + SIGMA * value for value in islice(values, 40_000)):
        memory, reading = observe_loss(memory, loss, outlier_sigmas=8.0, arl0=2_000.0)
        if reading is not None:
            num_shifted += reading.shift >= reading.shift_limit
            num_loud += reading.is_loud

    assert 40_000 / max(1, num_shifted) > 0.8 * 2_000
    assert 40_000 / max(1, num_loud) > 0.8 * 2_000


@pytest.mark.slow
def test_outliers_are_as_rare_as_said():
    """
    On heavy-tailed noise single outliers come up no more often than their ARL0 says.
    """
    values, memory, num_outliers = noise("t4", 22), LossTests(), 0
    for loss in (2.0 + SIGMA * value for value in islice(values, 40_000)):
        memory, reading = observe_loss(memory, loss, outlier_sigmas=6.0, arl0=1e6)
        num_outliers += reading is not None and reading.is_outlier

    assert 40_000 / num_outliers > 0.8 * heavy_tail_arl0(6.0)


@pytest.mark.parametrize("is_straight", [True, False])
@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.1])
def test_what_belongs_to_the_schedule_is_no_breach(sigma, is_straight):
    """
    A fast fall from 11 to 4, a restarted learning rate that lifts the loss by 0.5 for 100
    steps, and a step down with less noise are notices at most.
    """
    found = watch(LossVarianceSequential(), losses(schedule(30, sigma, is_straight=is_straight)))

    assert {b.status for b in found} <= {Status.NOTICE}
    assert all(950 <= b.step < 1_120 for b in found)


@pytest.mark.parametrize("length", [1, 400])
@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.1])
def test_a_real_jump_among_them_is(sigma, length):
    """
    A jump of 3.0 at step 1500 is found within two steps, whether it stays or not.
    """
    series = schedule(31, sigma, is_straight=True)
    for t in range(1_500, 1_500 + length):
        series[t] += 3.0

    found = breaches(watch(LossVarianceSequential(), losses(series)))

    assert 1_500 <= found[0].step <= 1_501
    assert found[0].is_actionable


@pytest.mark.parametrize("start", [2.0, -0.5])
def test_a_fall_is_never_a_breach(start):
    """
    Sudden and steady falls, also through zero, are not even noticed.
    """
    values = noise("gaussian", 32)
    level, series = start, []
    for t in range(1_200):
        level -= 0.4 if t in {300, 700} else 0.0
        level -= 0.002 if t > 900 else 0.0
        series.append(level + SIGMA * next(values))

    assert watch(CERTAIN, losses(series)) == []


def test_one_odd_batch_is_a_notice_and_nothing_more():
    """
    A single step 12 sigmas up, normal again afterwards, opens no incident.
    """
    series = noisy("gaussian", 33, 400)
    series[300] += 12 * SIGMA

    (notice,) = watch(LossVarianceSequential(), losses(series))

    assert (notice.step, notice.status, notice.is_actionable) == (300, Status.NOTICE, False)


def test_a_spike_has_one_breach_and_one_recovery():
    """
    A spike of twenty steps is one incident; it ends a few steps after the loss is back.
    """
    series = noisy("gaussian", 34, 500)
    for k in range(20):
        series[300 + k] += 3.0

    found = watch(LossVarianceSequential(), losses(series))

    assert brief(found) == [(300, "breach"), (324, "recovered")]
    assert "back where it came from" in found[1].message


def test_a_new_level_ends_the_incident_in_the_end():
    """
    A loss that stays high is one breach; once the trend has caught up, the incident ends
    and says that this is a new level.
    """
    series = [x + (2.0 if i >= 300 else 0.0) for i, x in enumerate(noisy("gaussian", 35, 1_500))]

    found = watch(LossVarianceSequential(), losses(series))

    assert [b.status for b in found] == [Status.BREACH, Status.RECOVERED]
    assert "new level" in found[1].message
    assert found[1].step > 450


def test_a_slow_divergence_becomes_a_breach_when_it_matters():
    """
    A ramp of half a sigma a step is noticed at once and a breach by the time it has lifted
    the loss by a quarter.
    """
    series = noisy("gaussian", 36, 500, lambda k, e: e + 0.5 * k, onset=300)
    need = math.ceil(0.25 * series[299] / (0.5 * SIGMA))

    found = watch(LossVarianceSequential(), losses(series))

    assert found[0].status is Status.NOTICE
    assert found[0].step < 315
    (breach,) = breaches(found)
    assert need - 5 <= breach.step - 300 <= need + 5


def test_names_the_rank_whose_loss_stands_out():
    """
    A rise that one rank's loss explains names it, with its batch; one that all share names
    nobody.
    """
    rng = random.Random(37)

    def run(*rises: float):
        rows = [[2.0 + SIGMA * rng.gauss(0, 1) for _ in rises] for _ in range(100)]
        rows.append([2.0 + rise for rise in rises])
        return [round_of(i, *row, batch=1_000 + i) for i, row in enumerate(rows)]

    (alone,) = watch(LossVarianceSequential(), run(0.0, 0.0, 8.0, 0.0))
    (shared,) = watch(LossVarianceSequential(), run(2.0, 2.1, 1.9, 2.0))

    assert (alone.rank, shared.rank) == (2, None)
    assert alone.evidence["batches"] == [1_100]


@pytest.mark.parametrize("harder", [0.9, 3.0])
def test_a_rank_with_harder_data_is_not_blamed_for_all(harder):
    """
    A rise that all ranks share names nobody though one rank's loss always stands higher; one of
    its own names it all the same.
    """
    rng = random.Random(43)

    def run(*rises: float):
        rows = [[2.0 + harder * r + SIGMA * rng.gauss(0, 1) for r in (0, 1)] for _ in range(100)]
        rows += [[2.0 + harder * r + rise for r, rise in enumerate(rises)]] * 2
        found = watch(LossVarianceSequential(), [round_of(i, *row) for i, row in enumerate(rows)])
        return breaches(found)[0].rank

    level = 2.0 + harder / 2
    assert run(0.35 * level, 0.35 * level) is None
    assert run(0.0, 2.0 * level) == 1
    assert run(2.0 * level + harder, 0.0) in {0, None}


def test_growing_noise_is_only_logged():
    """
    Noise four times as large around the same level is a breach that leads to no action, and
    ends when the noise does.
    """
    series = noisy("gaussian", 38, 900, lambda k, e: 4 * e if k < 150 else e, onset=500)

    found = watch(LossVarianceSequential(), losses(series))

    assert [(b.status, b.is_actionable) for b in found if b.status is not Status.NOTICE] == [
        (Status.BREACH, False),
        (Status.RECOVERED, False),
    ]
    assert found[-1].step > 640


def test_gradient_norms_are_evidence_of_their_own():
    """
    Norms twenty times the usual for two steps ask for a snapshot, although the loss is as
    ever; one step of it does not, but one that is a hundred times the usual does.
    """
    rng = random.Random(39)
    rounds = [
        round_of(i, 2.0 + SIGMA * rng.gauss(0, 1), grad_norm=0.2 * rng.lognormvariate(0, 0.1))
        for i in range(300)
    ]
    once = [*rounds[:200], round_of(200, 2.0, grad_norm=4.0), *rounds[201:]]
    sure = [*rounds[:200], round_of(200, 2.0, grad_norm=20.0), *rounds[201:]]
    twice = [*once[:201], round_of(201, 2.0, grad_norm=4.0), *rounds[202:]]

    assert watch(LossVarianceSequential(), once) == []
    sure_found = watch(LossVarianceSequential(), sure)
    assert brief(sure_found) == [(200, "breach"), (205, "recovered")]
    found, _ = watch(LossVarianceSequential(), twice)
    assert (found.step, found.action, found.is_actionable) == (201, "snapshot", True)
    assert found.statistic == pytest.approx(20, rel=0.2)


def densities(*, low_from: int = 1000, low: float = 0.5, num_low: int = 1000):
    """Rounds of which each tenth knows how many elements of its gradient are zero."""
    rng = random.Random(40)
    rounds = []
    for i in range(600):
        is_low = low_from <= i < low_from + num_low
        share = (low if is_low else 1.0) * 0.8 * (1 + 0.02 * rng.gauss(0, 1))
        zero_share = 1 - share if i % 10 == 0 else None
        rounds.append(round_of(i, 2.0 + SIGMA * rng.gauss(0, 1), zero_share=zero_share))
    return rounds


def test_a_gradient_that_thins_out_asks_for_clip_and_decay():
    """
    Two readings in a row with 40 % fewer elements that are not zero are a breach that asks for
    clip_and_decay; one reading is not, nor is a fall by a quarter, nor ordinary noise.
    """
    found = watch(LossVarianceSequential(), densities(low_from=400))

    assert [(f.step, f.action, f.is_actionable) for f in found if f.evidence["kind"] == "sparsity"]
    assert (found[0].step, found[0].action) == (410, "clip_and_decay")
    assert found[0].statistic == pytest.approx(0.5, rel=0.1)
    assert watch(LossVarianceSequential(), densities()) == []
    assert watch(LossVarianceSequential(), densities(low_from=400, num_low=10)) == []
    assert watch(LossVarianceSequential(), densities(low_from=400, low=0.75)) == []


def test_a_caution_does_not_hide_what_is_worse():
    """
    After a gradient norm has asked for a snapshot, a loss that jumps in the same episode still
    asks for the rule's own action, and a thinned-out gradient for its own.
    """
    rounds = [round_of(i, 2.0 + 0.01 * (i % 7), grad_norm=0.2, zero_share=0.1) for i in range(300)]
    rounds += [round_of(step, 2.0, grad_norm=20.0, zero_share=0.1) for step in (300, 301)]
    rounds += [round_of(step, 2.0, grad_norm=20.0, zero_share=0.9) for step in (302, 303)]
    rounds += [round_of(step, 9.0, grad_norm=20.0, zero_share=0.9) for step in (304, 305)]

    found = watch(LossVarianceSequential(), rounds)

    asked = [(f.step, f.action) for f in found if f.status is Status.BREACH]
    assert asked == [(300, "snapshot"), (303, "clip_and_decay"), (304, None)]
    quiet = LossVarianceSequential(grad_norm_action="log")
    assert watch(quiet, rounds)[0].action == "log"


def test_needs_no_gradient_norm():
    """
    Without gradient norms the same breach is found at the same step.
    """
    series = noisy("gaussian", 40, 320)
    series[300:] = [x + 3.0 for x in series[300:]]
    bare = watch(LossVarianceSequential(), losses(series))
    with_norms = [round_of(i, x, grad_norm=0.2) for i, x in enumerate(series)]

    assert brief(bare) == brief(watch(LossVarianceSequential(), with_norms)) == [(300, "breach")]


def test_non_finite_losses_are_neither_judged_nor_remembered():
    """
    NaN and infinity, on one rank or all, leave the findings as they would be without them.
    """
    series = [round_of(i, x, x) for i, x in enumerate(noisy("gaussian", 41, 320))]
    series[310] = round_of(310, 9.0, 9.0)
    odd = [round_of(i, 2.0, x) for i, x in enumerate([math.nan, math.inf, -math.inf])]

    mixed = [*series[:100], *odd, *series[100:305], *odd, *series[305:]]

    assert brief(watch(LossVarianceSequential(), mixed)) == brief(
        watch(LossVarianceSequential(), series)
    )


def test_a_flat_loss_is_quiet():
    """
    A loss without any noise does not make the smallest change a spike.
    """
    series = [2.0] * 300 + [2.001] * 100 + [2.0] * 100

    assert watch(CERTAIN, losses(series)) == []


def test_repeated_steps_after_a_rollback_end_the_incident():
    """
    When steps are done again after a rollback and are fine, the incident ends, although
    their numbers are smaller.
    """
    series = noisy("gaussian", 42, 400)
    spike = [round_of(300 + k, series[300] + 3.0) for k in range(5)]
    again = [round_of(250 + k, series[250 + k]) for k in range(50)]

    found = watch(LossVarianceSequential(), [*losses(series[:300]), *spike, *again])

    assert brief(found) == [(300, "breach"), (255, "recovered")]


def test_refuses_impossible_settings():
    """
    The text names the settings and the values.
    """
    with pytest.raises(ValueError, match="arl0 must be at least 100 steps, got 1"):
        LossVarianceSequential(arl0=1)
    with pytest.raises(ValueError, match="must be at least 3 and in this order, got 30"):
        LossVarianceSequential(outlier_sigmas=30)
    with pytest.raises(ValueError, match="min_rise_ratio must be at least 0"):
        LossVarianceSequential(min_rise_ratio=-1)
    with pytest.raises(ValueError, match="recovery_steps must be at least 1, got 0"):
        LossVarianceSequential(recovery_steps=0)
