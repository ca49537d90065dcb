"""What neither stops training nor takes it back: done, and over."""

from collections.abc import Iterator
from typing import Any

import pytest

from slav1.coordinator import messages
from slav1.coordinator.membership import NODE_SILENCE_S
from slav1.sample import Sample

from ._books import Job, finding


@pytest.fixture
def job(tmp_path: Any) -> Iterator[Job]:
    made = Job(tmp_path)
    for rank in (0, 1):
        made.hear(rank, messages.RankJoined(rank=rank, can_roll_back=True))
    yield made
    made.close()


def schedule(job: Job, step: int) -> int:
    """Both nodes hold for the newest decision; returns its number."""
    number: int = job.of_kind(messages.Hold)[-1][1].number
    for node in (0, 1):
        job.hear(node, messages.Acknowledged(number=number, step=step))
    return number


def carry_out(job: Job, number: int, step: int) -> None:
    for rank in (0, 1):
        done = messages.CarriedOut(number=number, rank=rank, step=step, latency_s=0.01)
        job.hear(rank, done)


def found(job: Job, action: str | None, step: int) -> None:
    job.report(1, finding("non_finite", 1, step=step, action=action))


def actions(job: Job) -> list[str | None]:
    return [entry.action for entry in job.entries("decision")]


def test_a_mild_decision_is_over_when_it_is_done(job: Job) -> None:
    """
    After a snapshot the next finding is decided anew, a rollback as well as another snapshot,
    and the run does not count as stopped.
    """
    for step, action in ((7, "snapshot"), (30, "snapshot")):
        found(job, action, step)
        carry_out(job, schedule(job, step + 1), step + 1)
    found(job, None, 50)
    schedule(job, 51)

    assert actions(job) == ["snapshot", "snapshot", "rollback"]
    assert job.entries("restored") == []


def test_another_mild_one_comes_after_it(job: Job) -> None:
    """
    While a snapshot is under way a second finding of the same kind is covered by it, and one
    that asks for something milder is done afterwards.
    """
    found(job, "snapshot", 7)
    number = schedule(job, 8)
    found(job, "snapshot", 8)
    found(job, "clip_and_decay", 8)
    assert actions(job) == ["snapshot"]

    carry_out(job, number, 8)
    carry_out(job, schedule(job, 10), 10)

    assert actions(job) == ["snapshot", "clip_and_decay"]


def test_it_is_never_worth_the_end_of_the_job(job: Job) -> None:
    """
    While a node is silent a snapshot, which would have let training go on, is left out with a
    line; a rollback ends all processes as ever.
    """
    job.pass_s(NODE_SILENCE_S + 1, speaking=(0,))
    job.report(0, finding("non_finite", 0, step=7, action="snapshot"))
    assert job.of_kind(messages.End) == job.entries("decision") == []
    told = [line for line in job.entries("notice") if "is left out" in (line.message or "")]
    assert [(line.rule, line.rank, line.step) for line in told] == [("non_finite", 0, 7)]

    job.report(0, finding("non_finite", 0, step=9))
    assert [node for node, _ in job.of_kind(messages.End)] == [0, 1]


def test_a_harder_one_goes_first(job: Job) -> None:
    """
    A rollback that becomes due before a snapshot is done is decided as soon as it is.
    """
    found(job, "snapshot", 7)
    number = schedule(job, 8)
    found(job, None, 8)
    carry_out(job, number, 8)
    schedule(job, 10)

    assert actions(job) == ["snapshot", "rollback"]


def test_a_milder_action_starts_no_recovery(job: Job) -> None:
    """
    What a run recovers from is the fault that took it back, and not an earlier finding that let
    training go on.
    """
    found(job, "snapshot", 7)
    carry_out(job, schedule(job, 8), 8)
    found(job, None, 30)
    number = schedule(job, 31)
    for rank in (0, 1):
        job.hear(rank, messages.RankWentBack(rank=rank, to_step=29))
    carry_out(job, number, 31)
    for step in (30, 31):
        for rank in (0, 1):
            job.report(rank, samples=(Sample(rank=rank, step=step, time_s=float(step), loss=2.0),))

    (recovered,) = [line for line in job.entries("incident_end") if line.rule == "recovery_time"]
    assert "past step 30" in (recovered.message or "")
