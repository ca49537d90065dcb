"""Meetings of all ranks: one outcome for all, and no longer than needed."""

from collections.abc import Iterator
from typing import Any

import pytest

from slav1.coordinator import messages
from slav1.coordinator.membership import NODE_SILENCE_S

from ._books import Job


@pytest.fixture
def job(tmp_path: Any) -> Iterator[Job]:
    made = Job(tmp_path, num_nodes=2, ranks_of_node=2).start()
    yield made
    made.close()


def come(job: Job, *ranks: int, topic: str = "checkpoint", count: int = 0) -> None:
    for rank in ranks:
        job.hear(
            rank // 2,
            messages.RankMeets(
                rank=rank, topic=topic, count=count, limit_s=20.0, value=b"%d" % rank
            ),
        )


def answers(job: Job) -> list[tuple[int, messages.RanksMet]]:
    return job.of_kind(messages.RanksMet)


def test_all_nodes_are_answered_when_the_last_rank_comes(job):
    """
    Nobody is answered before every rank came; then every node is, once, with what each
    rank brought in rank order. A node that asks again gets the same answer again.
    """
    come(job, 3, 0, 2)
    assert answers(job) == []
    come(job, 1)
    first = answers(job)
    come(job, 2)

    assert [node for node, _ in first] == [0, 1]
    assert first[0][1] == first[1][1]
    assert (first[0][1].values, first[0][1].reason) == ([b"0", b"1", b"2", b"3"], "")
    assert answers(job)[2:] == [(1, first[0][1])]


def test_meetings_of_one_topic_are_told_apart_by_their_number(job):
    """
    The second meeting of a topic does not wait for, or mix with, the first.
    """
    come(job, 0, 1, count=0)
    come(job, 0, 1, 2, 3, count=1)

    assert {message.count for _, message in answers(job)} == {1}


def test_ranks_that_do_not_come_in_time_are_named(job):
    """
    When the limit of those that wait is over, they and the ledger are told who came and
    who did not, and a rank that comes later is told the same.
    """
    come(job, 0, 3)
    job.pass_s(19, speaking=(0, 1))
    assert answers(job) == []
    job.pass_s(2, speaking=(0, 1))
    come(job, 1)

    nodes, (met, *others) = zip(*answers(job), strict=True)
    assert nodes == (0, 1, 0)
    assert all(each == met for each in others)
    assert (met.arrived, met.missing, met.values) == ([0, 3], [1, 2], [])
    (text,) = job.messages("notice")
    assert text.startswith("checkpoint entered by ranks [0, 3], missing [1, 2]")


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_nobody_waits_for_a_rank_that_is_gone(job, is_before, is_lost):
    """
    A meeting fails at once when a rank that has not come is lost or leaves, or has already.
    """
    if is_before:
        job.leave(1, is_lost=is_lost)
    come(job, 0)
    if not is_before:
        assert answers(job) == []
        job.leave(1, is_lost=is_lost)

    ((node, met),) = answers(job)
    assert (node, met.arrived, met.missing) == (0, [0], [1, 2, 3])
    assert ("is lost" if is_lost else "has left") in met.reason


def test_a_rank_that_came_may_leave(job):
    """
    A rank that brought its part and left does not fail the meeting.
    """
    come(job, 1)
    job.leave(1)
    come(job, 0, 2, 3)

    assert [message.reason for _, message in answers(job)] == ["", ""]


def test_a_silent_node_is_not_waited_for(job):
    """
    A meeting fails when the node of a rank that has not come counts as silent, long before
    its limit; one whose ranks all came waits on.
    """
    come(job, 0, 1)
    come(job, 2, 3, topic="other")
    job.pass_s(NODE_SILENCE_S + 2, speaking=(0,))

    ((node, met),) = answers(job)
    assert (node, met.topic, met.missing) == (0, "checkpoint", [2, 3])
    assert "node 1 has said nothing" in met.reason
