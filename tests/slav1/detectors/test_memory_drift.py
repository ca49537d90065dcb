"""Memory that grows: told early and once, by series, by step or by event; and healthy noise."""

import math
import random

import pytest
from _detector_tools import breaches, brief, on_host, watch, watch_from

from slav1.breach import Status
from slav1.detectors import MemoryDriftSequential
from slav1.detectors._memory_series import Series, evidence, with_long_block
from slav1.sample import Sample, Usage

KINDS = ("mild", "harsh", "rss", "walk")


def trace(kind, seed, num_steps, *, leak=0.0, leak_at=0):
    """Memory with a warm-up, evaluations, level shifts and noise of a kind; see benchmarks."""
    rng = random.Random(f"{kind} {seed}")
    wander = walk = level = 0.0
    shifts = [(rng.randrange(200, 20_000), rng.uniform(-200.0, 200.0)) for _ in range(4)]
    for step in range(num_steps):
        level += sum(by for at, by in shifts if at == step)
        value = 4_000.0 - 2_000.0 * math.exp(-step / 200.0) + level + abs(rng.gauss(0.0, 5.0))
        if step >= 500:
            value += 300.0 + (1_500.0 if step % 500 < 20 else 0.0)
        if kind in ("harsh", "rss"):
            wander = 0.99 * wander + rng.gauss(0.0, 2.0)
        if kind == "walk":
            walk += rng.gauss(0.0, 0.5)
        value += wander + walk + (68.0 * (step % 137) / 137.0 if kind == "rss" else 0.0)
        yield value + leak * max(0, step - leak_at)


def on_device(values, *, every=5):
    """Samples of a rank whose device memory is read every few steps."""
    return (
        Sample(rank=3, step=step, time_s=0.2 * step, allocated_mib=value)
        for step, value in enumerate(values)
        if step % every == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_leak_of_1_mib_a_step_is_found_within_1200_steps(kind):
    """
    On every kind of noise a leak is told first as a suspicion and then, within 1,200 steps,
    with evidence to act on; each once, with rank, series and about the right slope.
    """
    leaking = trace(kind, 7, 4_500, leak=1.0, leak_at=2_500)

    found = watch(MemoryDriftSequential(), on_device(leaking))

    told = [(breach.evidence["kind"], breach.is_actionable) for breach in breaches(found)]
    assert told in ([("steady_rise", False), ("drift", True)], [("drift", True)])
    last = breaches(found)[-1]
    assert 2_500 < last.step <= 3_750
    assert (last.rank, last.evidence["series"], last.evidence["per"]) == (3, "allocated", "step")
    assert 0.6 < last.statistic < 1.3


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_healthy_memory_is_silent(kind):
    """
    Warm-up, evaluations, level shifts, wander, a saw-tooth and a random walk are no drift.
    """
    for seed in range(2):
        found = watch(MemoryDriftSequential(), on_device(trace(kind, seed, 12_000)))

        assert brief(breaches(found)) == []


def test_a_leak_from_the_start_is_told_within_200_steps_of_warm_up():
    """
    A process that keeps 1 MiB of every step is suspected by step 330: host memory, slope,
    over how many steps, and the time that is left; once, and not with evidence to act on.
    """
    found = watch(MemoryDriftSequential(), on_host(lambda step: 500.0 + step, 400))

    assert len(found) == 1
    breach = found[0]
    assert breach.step <= 330 and not breach.is_actionable
    assert breach.statistic == pytest.approx(1.0, rel=0.05)
    assert breach.evidence["num_steps"] >= 190
    assert breach.evidence["steps_left"] == pytest.approx(12_000, rel=0.1)
    assert breach.evidence["seconds_left"] == pytest.approx(120, rel=0.1)
    for part in ("Host memory of rank 1", "MiB per step", "used up after", "min"):
        assert part in breach.message


@pytest.mark.parametrize("epoch", [100, 1_000])
def test_what_an_epoch_takes_and_gives_back_is_no_drift(epoch):
    """
    Memory that rises by 1 MiB a step and falls at each epoch's end is silent, but for the
    first epoch of a thousand steps, whose end nobody has seen yet.
    """
    events = on_host(
        lambda step: 500.0 + step % epoch, 8_000, num_epochs=lambda step: step // epoch
    )

    found = watch(MemoryDriftSequential(), events)

    assert [breach.step for breach in breaches(found) if breach.step > epoch] == []
    assert found == [] or found[-1].status is Status.RECOVERED


@pytest.mark.parametrize("period", [200, 1_300])
def test_a_saw_tooth_of_its_own_period_is_never_acted_on(period):
    """
    Memory that rises for hundreds of steps and falls, again and again and with no event, may be
    suspected while it rises but is never told with evidence to act on.
    """
    found = watch(MemoryDriftSequential(), on_device(500.0 + s % period for s in range(8_000)))

    assert [breach for breach in breaches(found) if breach.is_actionable] == []


def test_an_epoch_whose_floor_rises_is_told_by_epoch():
    """
    Where a saw-tooth comes back to a higher floor each time, the growth is told by epoch, as
    the distance of like from like, and not from the floor of one tooth to the top of another.
    """
    events = on_host(
        lambda step: 500.0 + 0.3 * (step % 60) + 8.0 * (step // 60),
        1_200,
        num_epochs=lambda step: step // 60,
        num_evaluations=lambda step: step // 60,
    )

    breach = breaches(watch(MemoryDriftSequential(), events))[0]

    assert breach.step < 800
    assert (breach.evidence["per"], breach.evidence["together_with"]) == ("epoch", ["evaluation"])
    assert breach.evidence["per_event"] == pytest.approx(8.0, rel=0.1)
    assert "MiB per epoch, each with an evaluation" in breach.message


def test_a_bit_more_after_every_checkpoint_is_told_by_checkpoint():
    """
    20 MiB that stay after each save, one every 50 steps, are 20 MiB per checkpoint and not
    so many KiB per step; the rise during the save itself is not looked at.
    """
    events = on_host(
        lambda step: 500.0 + 20.0 * (step // 50), 1_000, num_saves=lambda step: step // 50
    )

    found = watch(MemoryDriftSequential(), events)

    assert len(found) == 1
    assert found[0].evidence["per"] == "save"
    assert found[0].evidence["per_event"] == pytest.approx(20.0, rel=0.05)
    assert "by about 20 MiB per checkpoint" in found[0].message


@pytest.mark.parametrize("every", [20, 50, 500])
def test_a_leak_by_step_is_not_put_down_to_checkpoints(every):
    """
    Where memory rises with each step, between saves as much as at them, it is told by step.
    """
    events = on_host(lambda step: 500.0 + step, 900, num_saves=lambda step: step // every)

    for breach in breaches(watch(MemoryDriftSequential(), events)):
        assert breach.evidence["per"] == "step"


def test_a_few_saves_that_take_memory_are_silent():
    """
    Where only the first three saves leave something behind, nothing is told.
    """
    events = on_host(
        lambda step: 500.0 + 20.0 * min(3, step // 50), 2_000, num_saves=lambda step: step // 50
    )

    assert watch(MemoryDriftSequential(), events) == []


def test_an_incident_is_told_once_and_ends_when_the_rise_does():
    """
    However long it goes on, a leak is one breach of each grade; 400 steps after it stopped
    the incident is over, and a second leak is told anew.
    """

    def memory(step):
        return 500.0 + min(step, 3_000) + max(0, step - 6_000)

    found = watch(MemoryDriftSequential(), on_host(memory, 7_000))

    assert [status for _, status in brief(found)][:4] == ["breach", "breach", "recovered", "breach"]
    assert 3_300 < found[2].step < 3_600
    assert "has not grown any more since" in found[2].message
    assert found[3].step > 6_000


def test_an_incident_outlives_a_rollback():
    """
    When steps come again the series starts afresh, but what was told is not told again.
    """
    state, found = watch_from(
        MemoryDriftSequential(),
        MemoryDriftSequential().start(),
        on_host(lambda step: 500.0 + step, 400),
    )
    assert len(found) == 1

    _, later = watch_from(
        MemoryDriftSequential(), state, on_host(lambda step: 700.0 + step, 700, first=200)
    )

    assert [b for b in breaches(later) if b.evidence["kind"] == "steady_rise"] == []


def test_a_process_near_its_ceiling_is_acted_on_at_once():
    """
    A rank that has grown and will use up its container's memory within 200 steps, or holds
    95 % of it, is told with evidence to act on, without the statistics of long runs.
    """
    events = on_host(lambda step: 500.0 + 4.0 * step, 260, free_mib=lambda step: 1_300.0 - 4 * step)

    found = breaches(watch(MemoryDriftSequential(), events))

    near = [breach for breach in found if breach.evidence["kind"] == "near_ceiling"]
    assert len(near) == 1 and near[0].is_actionable
    assert near[0].evidence["steps_left"] < 220
    assert near[0].evidence["may_wait_s"] < near[0].evidence["seconds_left"]


def test_a_full_but_steady_device_is_silent():
    """
    A device that is 97 % full from the start on and stays so is not near its ceiling.
    """
    events = [
        Usage(rank=0, step=0, time_s=0.0, device_mib=80_000.0),
        *on_device([77_600.0] * 3_000),
    ]

    assert watch(MemoryDriftSequential(), events) == []


@pytest.mark.parametrize(
    ("name", "series", "words"),
    [
        ("num_fds", "fds", "The number of open file descriptors of rank 0 grows by 1 per step"),
        ("num_threads", "threads", "The number of threads of rank 0 grows by 1 per step"),
    ],
)
def test_descriptors_and_threads_are_watched_too(name, series, words):
    """
    One file descriptor or thread more a step is told under its own name.
    """
    events = (
        Usage(rank=0, step=step, time_s=0.1 * step, host_mib=900.0, **{name: 40 + step})
        for step in range(0, 500, 4)
    )

    found = breaches(watch(MemoryDriftSequential(), events))

    assert [breach.evidence["series"] for breach in found] == [series]
    assert words in found[0].message


def test_fragmentation_is_told_from_a_leak():
    """
    Where the allocator holds more and more and tensors do not, that series is named alone.
    """
    events = (
        Sample(
            rank=0, step=step, time_s=step, allocated_mib=1_000.0, reserved_mib=2_000.0 + 2.0 * step
        )
        for step in range(0, 500, 5)
    )

    found = breaches(watch(MemoryDriftSequential(), events))

    assert [breach.evidence["series"] for breach in found] == ["fragmentation"]


def test_a_growth_that_fills_nothing_for_weeks_is_not_worth_a_line():
    """
    What would take longer than the horizon to fill the machine is silent.
    """
    slow = {"every": 3, "free_mib": 1e9}

    assert watch(MemoryDriftSequential(), on_host(lambda s: 500.0 + 0.5 * s, 3_000, **slow)) == []
    short = MemoryDriftSequential(horizon_s=1e9)
    assert breaches(watch(short, on_host(lambda s: 500.0 + 0.5 * s, 3_000, **slow))) != []


@pytest.mark.slow
def test_the_sign_test_keeps_its_claim():
    """
    On random walks, for which the bound is exact, the evidence alone reaches its limit at
    most 1 / 0.8 times in the steps that it claims between two false alarms.
    """
    arl0, num_runs, num_alarms = 10_000.0, 30, 0
    rng = random.Random(5)
    for _ in range(num_runs):
        series, value = Series(), 1e6
        for step in range(50, int(arl0) + 1, 50):
            value += rng.gauss(0.0, 10.0)
            series = series._replace(floors=((step, value, 0, 0, 0, step),))
            series = with_long_block(series, step - 50, 50, base=25, tolerance=0.0)
            if evidence(series, 50, arl0) >= 1.0:
                num_alarms += 1
                series = Series()

    assert num_alarms <= num_runs / 0.8
