"""Where a growth of memory ends: what slows down, what goes on, what belongs to a tooth."""

import math
import random

import pytest
from _detector_tools import breaches, brief, on_host, watch

from slav1.breach import Status
from slav1.detectors import MemoryDriftSequential


def by_epoch(step: int, *, num_leaking: int = 1_000) -> float:
    """A tooth of 210 MiB an epoch of 700 steps, whose floor rises by 20 MiB each."""
    return 1_000.0 + 20.0 * min(num_leaking, step // 700) + 0.3 * (step % 700)


def epochs(step: int) -> int:
    return step // 700


@pytest.mark.parametrize("tau", [500, 1_000, 1_500])
def test_a_warm_up_that_slows_down_is_never_acted_on(tau):
    """
    Caches that fill ever more slowly, for thousands of steps, may be suspected; what is still to
    come fits into the memory that there is, so nothing is done.
    """
    events = on_host(lambda step: 4_000.0 - 2_000.0 * math.exp(-step / tau), 8_000)

    found = breaches(watch(MemoryDriftSequential(), events))

    assert [breach for breach in found if breach.is_actionable] == []


def test_one_that_slows_down_too_late_is():
    """
    Where what is still to come is more than what is left, slowing down is no excuse.
    """
    events = on_host(
        lambda step: 4_000.0 - 2_000.0 * math.exp(-step / 1_000),
        1_700,
        free_mib=lambda step: 200.0 + 2_000.0 * math.exp(-step / 1_000) - 300.0,
    )

    assert [b for b in breaches(watch(MemoryDriftSequential(), events)) if b.is_actionable] != []


def test_a_tooth_does_not_end_the_incident_that_its_floor_began():
    """
    A floor that rises epoch by epoch under a large tooth is one suspicion and one breach to act
    on, both by epoch: the fall at an epoch's end is no recovery.
    """
    found = watch(MemoryDriftSequential(), on_host(by_epoch, 14_000, num_epochs=epochs))
    told = [b for b in found if b.step > 1_400]

    assert [(b.status, b.evidence["kind"], b.evidence["per"]) for b in told] == [
        (Status.BREACH, "steady_rise", "epoch"),
        (Status.BREACH, "drift", "epoch"),
    ]
    assert all(b.evidence["per_event"] == pytest.approx(20.0, rel=0.1) for b in told)
    assert told[1].statistic == pytest.approx(20.0 / 700, rel=0.1)


def test_it_ends_when_the_floor_rises_no_more():
    """
    Once the floors of epochs stay where they are, the incident is over though the tooth goes on.
    """
    events = on_host(lambda step: by_epoch(step, num_leaking=10), 12_000, num_epochs=epochs)

    told = [b for b in watch(MemoryDriftSequential(), events) if b.step > 1_400]

    assert [status for _, status in brief(told)] == ["breach", "recovered"]
    assert 7_700 < told[1].step < 11_500


def test_a_full_machine_is_told_once_for_one_growth():
    """
    A rank that has grown by 40 MiB on a full machine is near its ceiling; when it grows no more
    that is over, and what it grew by before is not told again.
    """
    events = on_host(lambda step: 3_000.0 + 40.0 * min(1.0, step / 600), 4_000, free_mib=100.0)

    found = watch(MemoryDriftSequential(), events)

    assert [status for _, status in brief(found)] == ["breach", "recovered"]
    assert found[0].evidence["kind"] == "near_ceiling"


@pytest.mark.parametrize(("every", "lag"), [(50, 5), (100, 30), (200, 60), (500, 30)])
def test_what_a_save_leaves_behind_some_steps_later_is_told_by_save(every, lag):
    """
    Memory that stays after what is written in the background, some steps after each save, is
    told by checkpoint, and goes on being told once.
    """
    events = on_host(
        lambda step: 1_000.0 + 20.0 * (max(0, step - lag) // every),
        7_000,
        num_saves=lambda step: step // every,
        num_evaluations=lambda step: step // 1_000,
    )

    told = watch(MemoryDriftSequential(), events)

    assert {b.status for b in told} == {Status.BREACH} and len(told) <= 2
    assert {b.evidence["per"] for b in told} == {"save"}
    assert told[0].evidence["per_event"] == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize("every", [50, 100, 200])
@pytest.mark.parametrize("noise", [0.5, 5.0])
def test_what_grows_by_step_is_not_told_by_save(every, noise):
    """
    A leak of each step under noise is told by step, whatever lies between the saves.
    """
    rng = random.Random(every)
    events = on_host(
        lambda step: 1_000.0 + 0.4 * step + abs(rng.gauss(0.0, noise)),
        4_000,
        num_saves=lambda step: step // every,
    )

    told = breaches(watch(MemoryDriftSequential(), events))

    assert told != [] and {b.evidence["per"] for b in told} == {"step"}
