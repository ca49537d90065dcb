"""No step and memory in pieces, by the literal rule."""

import pytest
from _detector_tools import pulse, stall, watch

from slav1.breach import Status
from slav1.contract import Contract, Mode
from slav1.detectors import StallLiteral
from slav1.guard import Guard
from slav1.phase import Phase
from slav1.sample import Sample


def step(number: int = 5, *, allocated: float | None = 30.0, reserved: float | None = 100.0):
    return Sample(rank=1, step=number, time_s=0.0, allocated_mib=allocated, reserved_mib=reserved)


def looks(first_s: float, length_s: float, **changes):
    """One pulse a second."""
    return [pulse(first_s + i, **changes) for i in range(int(length_s) + 1)]


def test_no_step_and_memory_in_pieces_is_found_once():
    """
    More than 30 s without a step, with 70 % of the memory in no tensor: one breach, and its
    end with the next step.
    """
    found = watch(StallLiteral(), [step(), *looks(100.0, 90), step(6), *looks(191.0, 10)])

    assert [breach.status for breach in found] == [Status.BREACH, Status.RECOVERED]
    assert (found[0].statistic, found[0].limit) == (31.0, 30.0)
    assert found[0].evidence["gpu_fragmentation_rate"] == pytest.approx(70.0)
    assert found[0].is_actionable


@pytest.mark.parametrize(
    "events",
    [
        [step(), *looks(100.0, 30)],
        [step(allocated=35.0), *looks(100.0, 90)],
        [step(allocated=None, reserved=None), *looks(100.0, 90)],
        [step(reserved=0.0), *looks(100.0, 90)],
        looks(100.0, 90),
        [step(), *looks(100.0, 90, phase=Phase.EVALUATION)],
        [step(), *looks(100.0, 90, phase=Phase.CHECKPOINT), *looks(191.0, 20)],
        [step(), *looks(100.0, 20), *looks(180.0, 20)],
        [event for i in range(20) for event in (step(i), *looks(100.0 + 10 * i, 9))],
    ],
)
def test_anything_less_is_no_stall(events):
    """
    A stall at the limit, memory that is whole or was never measured, evaluations and saves,
    a monitor that stood still itself, and steps that come in time are none.
    """
    assert watch(StallLiteral(), events) == []


def test_other_jobs_are_not_judged():
    """
    The rule is about fine-tuning, which is what level L1 is for; other levels name other
    kinds of job, and a contract can say what it is.
    """
    kinds = {
        level: Contract.level(level).rules["stall"].detector.job_type
        for level in ("L1", "L2", "L3")
    }
    events = [step(), *looks(100.0, 90)]

    assert kinds["L1"] == "distributed_finetune"
    assert [bool(watch(StallLiteral(job_type=kind), events)) for kind in kinds.values()] == [
        True,
        False,
        False,
    ]
    named = Contract.level("L3").override(stall={"job_type": "distributed_finetune"})
    assert watch(named.rules["stall"].detector, events)
    assert Contract.level("L1").rules["stall"].mode is Mode.OBSERVE


def test_without_readings_of_memory_it_is_not_exercised():
    """
    What it can't use does not count as seen: on processors the clause is not exercised.
    """
    guard = Guard({"stall": StallLiteral()})
    for event in (step(allocated=None, reserved=None), *stall(100.0, 5.0)):
        guard.observe(event)
    assert guard.num_seen == {"stall": 0}

    guard.observe(step())
    assert guard.num_seen == {"stall": 1}
