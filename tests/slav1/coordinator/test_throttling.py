"""From a rank's ledger line about a save to slower writes on all nodes, and back."""

from collections.abc import Iterator
from typing import Any

import pytest

from slav1.coordinator import messages

from ._books import Job


@pytest.fixture
def job(tmp_path: Any) -> Iterator[Job]:
    made = Job(tmp_path).start()
    yield made
    made.close()


def tell(job: Job, kind: str, times: int = 1, **evidence: Any) -> None:
    for _ in range(times):
        job.hear(0, messages.RankNote(rank=0, step=7, message="x", kind=kind, evidence=evidence))


def go_back(job: Job) -> None:
    for rank in (0, 1):
        job.hear(rank, messages.RankWentBack(rank=rank, to_step=3, state=None))


def orders(job: Job) -> list[tuple[int, int]]:
    return [(node, order.percent) for node, order in job.of_kind(messages.Throttle)]


def test_failing_saves_slow_the_writers_of_all_nodes_until_they_succeed(job):
    """
    Five failed saves in a row slow the saves of every node to 60 %, once and without holding
    anybody; ten good ones let them go. Each failure is a line, each order a decision.
    """
    tell(job, "checkpoint_committed", 3)
    tell(job, "checkpoint_rejected", 4, num_failed_in_row=1, reason="The disk is full.")
    assert orders(job) == []
    tell(job, "checkpoint_rejected", 1, num_failed_in_row=5)
    assert orders(job) == [(0, 60), (1, 60)]
    tell(job, "checkpoint_rejected", 6, num_failed_in_row=6)
    assert len(orders(job)) == 2
    tell(job, "checkpoint_committed", 10)

    assert orders(job) == [(0, 60), (1, 60), (0, 100), (1, 100)]
    assert not job.of_kind(messages.Hold)
    assert [entry.evidence["percent"] for entry in job.entries("decision")] == [60, 100]
    assert [entry.action for entry in job.entries("decision")] == ["throttle_io"] * 2
    notices = [entry for entry in job.entries("notice") if entry.rule == "ckpt_success"]
    assert "The disk is full" in notices[0].message


def test_one_corrupt_write_is_enough(job):
    """
    A write that reads back differently is a breach at once, and slows the writers.
    """
    tell(job, "checkpoint_rejected", is_corrupt=True)

    assert [entry.rule for entry in job.entries("breach")] == ["ckpt_success"]
    assert orders(job) == [(0, 60), (1, 60)]


def test_a_checkpoint_that_is_passed_over_is_no_failed_save(job):
    """
    Rejections that say nothing about a write do not count.
    """
    tell(job, "checkpoint_rejected", 20, reason="tried twice")

    assert orders(job) == [] and not job.entries("breach")


def test_a_way_back_changes_no_disk(job):
    """
    What is known about the disk survives a rollback: two failures after it complete the three
    before it, and the incident that they open outlasts the next rollback.
    """
    tell(job, "checkpoint_rejected", 3, num_failed_in_row=1)
    go_back(job)
    tell(job, "checkpoint_rejected", 2, num_failed_in_row=1)
    go_back(job)

    assert orders(job) == [(0, 60), (1, 60)]
    assert not job.entries("incident_end")
