"""The line itself: events to detectors, findings out."""

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slav1.breach import Breach, Status
from slav1.contract import Contract
from slav1.guard import Guard
from slav1.phase import Phase
from slav1.sample import Audit, Pulse, Replicas, Round, Sample, Save, Usage


class CountState(NamedTuple):
    num: int = 0


class Count:
    """Finds every third sample of a rank; fails at a step that is not counted."""

    RULE: ClassVar[str] = "count"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 3

    def start(self) -> CountState:
        return CountState()

    def observe(self, state: CountState, event: Any) -> tuple[CountState, Breach | None]:
        if event.step < 0:
            raise ZeroDivisionError("a step below zero")
        state = CountState(state.num + 1)
        found = state.num % 3 == 0
        return state, finding(event) if found else None


def finding(event: Any) -> Breach:
    return Breach(
        rule="count",
        rank=event.rank,
        step=event.step,
        statistic=3.0,
        limit=3.0,
        unit="samples",
        message="x",
    )


def sample(rank: int, step: int) -> Sample:
    return Sample(rank=rank, step=step, time_s=0.0, loss=1.0)


def pulse(rank: int) -> Pulse:
    return Pulse(
        rank=rank,
        time_s=0.0,
        is_alive=True,
        process_state="R",
        step=0,
        phase=Phase.FORWARD,
        since_progress_s=0.0,
        num_steps=0,
    )


def test_each_rank_has_a_memory_of_its_own():
    """
    A detector of samples counts each rank for itself.
    """
    guard = Guard({"count": Count()})
    found = [guard.observe(sample(rank, step)) for step in range(3) for rank in (0, 1)]

    assert [[breach.rank for breach in each] for each in found] == [[], [], [], [], [0], [1]]
    assert guard.num_seen == {"count": 6}


def test_detectors_see_only_what_they_watch():
    """
    Events of a kind that a detector does not watch neither reach it nor count.
    """
    guard = Guard({"count": Count()})
    guard.observe(pulse(0))
    guard.observe(Round(step=0, samples=(sample(0, 0),)))

    assert guard.num_seen == {"count": 0}


def test_detector_that_fails_is_switched_off_and_told():
    """
    A detector that raises is off from then on, with one notice that names it; the others go
    on, and its silence counts as nothing in the verdict.
    """
    guard = Guard({"broken": Count(), "count": Count()})
    guard.observe(sample(0, 0))
    found = guard.observe(sample(0, -1))
    healthy = Guard({"count": Count()})
    later = [guard.observe(sample(1, step)) for step in range(3)]

    assert [breach.rule for breach in found] == ["broken", "count"]
    assert {breach.status for breach in found} == {Status.NOTICE}
    assert "ZeroDivisionError: a step below zero" in found[0].message
    assert later == [[], [], []]
    assert guard.num_seen == {"broken": 0, "count": 0}
    assert healthy.observe(sample(0, 0)) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50))), st.integers(0, 50))
def test_saved_memories_change_nothing(events, cut):
    """
    A run that is saved, written down, loaded and continued finds what an unbroken one finds.
    """
    unbroken, broken = Guard({"count": Count()}), Guard({"count": Count()})
    expected = [unbroken.observe(sample(*event)) for event in events]
    found = [broken.observe(sample(*event)) for event in events[:cut]]
    saved = msgspec.json.decode(msgspec.json.encode(broken.state_dict()))
    resumed = Guard({"count": Count()})
    assert resumed.load_state_dict(saved) == []
    found += [resumed.observe(sample(*event)) for event in events[cut:]]

    assert found == expected


@pytest.mark.parametrize("spoilt", [{"0": {"nums": 1}}, {"0": None}, {"zero": {"num": 1}}, None])
def test_memory_of_another_version_is_named_and_left_out(spoilt):
    """
    A saved memory that does not fit is named, and its rule starts afresh; one of a rule that
    the contract does not have is passed over.
    """
    guard = Guard({"count": Count()})

    assert guard.load_state_dict({"count": spoilt, "unknown": {}}) == ["count"]
    assert guard.observe(sample(0, 0)) == []


def test_all_rules_of_a_level_run_in_one_guard():
    """
    Every rule of every level takes every kind of event that it watches.
    """
    for level in ("L1", "L2", "L3"):
        rules = Contract.level(level).rules
        guard = Guard({name: rule.detector for name, rule in rules.items()})
        guard.observe(replace(sample(0, 0), allocated_mib=1.0, reserved_mib=2.0))
        guard.observe(pulse(0))
        guard.observe(Round(step=0, samples=(sample(0, 0), sample(1, 0))))
        guard.observe(Save(step=0, time_s=0.0, succeeded=True))
        guard.observe(Usage(rank=0, step=0, time_s=0.0, host_mib=100.0))
        guard.observe(Audit(step=0, time_s=0.0, moment="start"))
        guard.observe(
            Replicas(
                step=0,
                part="all",
                slots=(0,),
                ranks=(0, 1),
                num_tensors=1,
                num_differing=0,
                differing=(),
                is_first=True,
                is_certain=True,
            )
        )

        assert all(num > 0 for num in guard.num_seen.values())
