"""Time from a fault to the first step past it."""

import pytest

from slav1.coordinator.recovery import Fault, Recovery, unfinished_fault
from slav1.ledger import Entry

FAULT = Fault(rule="hang", step=80, began_ns=10_000_000_000)


def line(kind, time_s, **fields):
    return Entry(time_ns=int(time_s * 1e9), attempt=0, kind=kind, **fields)


BREACH = line("breach", 12, rule="hang", step=80, evidence={"seconds_since_progress": 2})
DECISION = line("decision", 12, rule="hang", step=None, action="restart")


def test_steps_that_are_made_again_are_no_recovery():
    """
    A run that went back has recovered at the first step past the fault, once.
    """
    recovery = Recovery(FAULT)

    assert recovery.on_steps(-1, 60, 11_000_000_000) is None
    assert recovery.on_steps(60, 80, 12_000_000_000) is None
    recovered = recovery.on_steps(80, 83, 13_500_000_000)
    assert recovered is not None
    assert (recovered.step, recovered.seconds) == (81, pytest.approx(3.5))
    assert recovery.on_steps(83, 84, 14_000_000_000) is None


def test_first_of_several_faults_counts():
    """
    What breaks while a run comes back makes the same recovery longer.
    """
    recovery = Recovery()
    recovery.begin(FAULT)
    recovery.begin(Fault(rule="liveness", step=90, began_ns=20_000_000_000))

    assert recovery.on_steps(79, 85, 30_000_000_000).seconds == pytest.approx(20.0)
    assert recovery.on_steps(90, 91, 40_000_000_000) is None


def test_fault_began_when_progress_ended():
    """
    The next attempt finds the fault of the one before in the ledger, from the moment at
    which the last progress was seen.
    """
    assert unfinished_fault([line("start", 0), BREACH, DECISION, line("end", 15)]) == FAULT


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [BREACH],
        [BREACH, line("decision", 12, rule="hang", action="throttle_io")],
        [BREACH, DECISION, line("incident_end", 20, rule="recovery_time", step=81)],
        [line("decision", 12, rule="liveness", step=None, action="restart")],
    ],
)
def test_nothing_to_come_back_from(entries):
    """
    Without a decision that leads back, after a recovery, or without a step there is
    no fault to time.
    """
    assert unfinished_fault(entries) is None
