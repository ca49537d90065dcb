"""The coordinator: who is there, what is decided, and when a run is over."""

from collections.abc import Iterator
from typing import Any

import pytest

from slav1.coordinator import messages
from slav1.coordinator.decisions import MAX_TRIES
from slav1.coordinator.membership import JOIN_NOTICE_S, NODE_SILENCE_S
from slav1.sample import Pulse, Sample

from ._books import Job, finding


@pytest.fixture
def start(tmp_path: Any) -> Iterator[Any]:
    jobs = []

    def _start(**settings: Any) -> Job:
        jobs.append(Job(tmp_path, **settings).start())
        return jobs[-1]

    yield _start
    for job in jobs:
        job.close()


def acknowledge(job: Job, *nodes: int, step: int = 9) -> int:
    """These nodes hold for the newest decision; returns its number."""
    number: int = job.of_kind(messages.Hold)[-1][1].number
    for node in nodes:
        job.hear(node, messages.Acknowledged(number=number, step=step + node))
    return number


def test_run_ends_when_every_node_is_done(start):
    """
    The last lines come with the last node: the counts of all nodes put together, one
    word on how it ended, and every node is dismissed. Nothing is written after that.
    """
    job = start()
    job.leave(0)
    job.done(0, hang=30)
    assert not job.coordinator.is_finished
    job.leave(1)
    job.done(1, hang=12)
    job.report(0, finding("non_finite", 0))
    job.pass_s(20)

    assert job.coordinator.is_finished
    counts = {entry.rule: entry.evidence["num_samples"] for entry in job.entries("verdict")}
    assert counts["hang"] == 42
    assert job.messages("end") == ["Training ended."]
    assert job.entries()[-1].kind == "end"
    assert [node for node, _ in job.of_kind(messages.Dismissed)] == [0, 1]


def test_node_that_never_comes_is_not_waited_for_for_ever(start, tmp_path):
    """
    When all nodes that came are done, one that never came is waited for as long as a
    silent one, and not while others are at work.
    """
    job = Job(tmp_path)
    job.hear(0, messages.RankJoined(rank=0))
    job.pass_s(5 * NODE_SILENCE_S, speaking=(0,))
    assert job.messages("notice") == []
    job.leave(0)
    job.done(0)
    job.pass_s(NODE_SILENCE_S + 2)
    job.close()

    assert job.coordinator.is_finished
    assert job.messages("end") == ["The run ended before every rank had joined."]


def test_silent_node_is_told_once_and_ends_nobody(start):
    """
    A node that says nothing is told of once, and once more when it is heard again; while
    nobody waits for it, nobody is ended.
    """
    job = start()
    job.pass_s(NODE_SILENCE_S - 1, speaking=(0,))
    assert job.messages("notice") == []
    job.pass_s(20, speaking=(0,))
    job.report(1)
    job.pass_s(5, speaking=(0, 1))

    told = job.messages("notice")
    assert len(told) == 2
    assert "node 1 has said nothing for 10 s. Its ranks (1)" in told[0]
    assert told[1] == "The monitor of node 1 is heard again."
    assert job.entries("breach") == job.of_kind(messages.End) == []


def test_pause_of_the_coordinator_is_nobodys_silence(start):
    """
    When the coordinator itself stood still for longer than a node may be silent, no node
    counts as silent.
    """
    job = start()
    job.pass_s(2, speaking=(0, 1))
    job.now_s += 60.0
    job.coordinator.on_tick(job.now_s)
    job.pass_s(5, speaking=(0, 1))

    assert job.messages("notice") == []


@pytest.mark.parametrize("is_actionable", [True, False])
def test_silent_node_is_lost_only_when_others_wait_beyond_their_limit(start, is_actionable):
    """
    A silent node counts as lost, and the job is ended, when another rank stands still
    beyond its hard limit; a short stall is not enough.
    """
    job = start()
    job.pass_s(NODE_SILENCE_S + 1, speaking=(0,))
    job.report(0, finding("hang", 0, is_actionable=is_actionable))
    job.pass_s(1, speaking=(0,))

    lost = [entry for entry in job.entries("breach") if entry.rule == "liveness"]
    assert [entry.rank for entry in lost] == ([1] if is_actionable else [])
    assert [node for node, _ in job.of_kind(messages.End)] == ([0, 1] if is_actionable else [])


@pytest.mark.parametrize(("reason", "num_lost"), [("finished", 0), ("RuntimeError: reset", 1)])
def test_node_silent_to_the_end_counts_by_how_others_ended(start, reason, num_lost):
    """
    A node that was silent to the end of a run counts as lost if other ranks failed, and
    not if they finished.
    """
    job = start()
    job.pass_s(2, speaking=(0,))
    job.leave(0, reason)
    job.done(0)
    job.pass_s(NODE_SILENCE_S + 2)

    assert job.coordinator.is_finished
    assert len([entry for entry in job.entries("breach") if entry.rank == 1]) == num_lost


def test_missing_ranks_are_named_once(start, tmp_path):
    """
    Ranks that have not joined a minute after the first one are named, once.
    """
    job = Job(tmp_path, num_nodes=1, ranks_of_node=3)
    job.hear(0, messages.RankJoined(rank=1))
    job.pass_s(JOIN_NOTICE_S - 2, speaking=(0,))
    assert job.messages("notice") == []
    job.pass_s(100, speaking=(0,))
    job.close()

    assert len(job.messages("notice")) == 1
    assert "Ranks 0, 2 have not joined within 60 s" in job.messages("notice")[0]


def test_decision_goes_through_all_nodes(start):
    """
    A breach that is enforced holds all nodes, is scheduled for the largest step they
    answer, written down before it is sent, and released when all ranks carried it out.
    """
    job = start()
    job.report(1, finding("non_finite", 1))
    assert [node for node, _ in job.of_kind(messages.Hold)] == [0, 1]
    number = acknowledge(job, 0, 1, step=9)
    schedules = job.of_kind(messages.Schedule)
    for rank in (0, 1):
        job.hear(
            rank, messages.CarriedOut(number=number, rank=rank, step=10, latency_s=0.01 * rank)
        )

    assert [(node, message.step) for node, message in schedules] == [(0, 10), (1, 10)]
    assert [node for node, _ in job.of_kind(messages.Release)] == [0, 1]
    (decision,) = job.entries("decision")
    assert (decision.rule, decision.rank, decision.step) == ("non_finite", 1, 10)
    assert [entry.rank for entry in job.entries("action")] == [0, 1, None]
    for rank in (0, 1):
        job.leave(rank)
        job.done(rank)
    assert job.messages("end")[0].startswith("The contract stopped training at step 10")


def test_decision_that_a_busy_node_missed_is_tried_again(start):
    """
    A decision that is withdrawn because a node answered too late is proposed again, but not
    for ever.
    """
    job = start()
    job.report(0, finding("non_finite", 0))
    for _ in range(MAX_TRIES + 2):
        acknowledge(job, 0)
        job.pass_s(7, speaking=(0, 1))

    numbers = [message.number for node, message in job.of_kind(messages.Hold) if node == 0]
    assert numbers == list(range(1, MAX_TRIES + 1))
    assert len(job.messages("notice")) == MAX_TRIES


def test_rank_lost_before_it_acted_ends_the_job(start):
    """
    When a rank dies between the schedule of a stop and the step it is for, the others would
    wait for it: every process is ended.
    """
    job = start()
    job.report(0, finding("non_finite", 0))
    acknowledge(job, 0, 1)
    job.report(1, finding("liveness", 1))
    job.leave(1, "lost", is_lost=True)

    assert [node for node, _ in job.of_kind(messages.End)] == [0, 1]
    assert len(job.entries("decision")) == 2


def test_job_is_ended_while_a_node_is_silent(start):
    """
    While a node is silent its ranks could not follow a scheduled stop: what is enforced
    ends all processes.
    """
    job = start()
    job.pass_s(NODE_SILENCE_S + 1, speaking=(0,))
    job.report(0, finding("non_finite", 0))

    assert job.of_kind(messages.Hold) == []
    assert [node for node, _ in job.of_kind(messages.End)] == [0, 1]


def test_node_that_comes_back_is_told_of_the_end(start):
    """
    A node that was silent when the job's processes were ended, or is heard for the first
    time after it, is told as well.
    """
    job = start()
    job.pass_s(NODE_SILENCE_S + 1, speaking=(0,))
    job.report(0, finding("liveness", 0))
    job.sent.clear()
    job.report(1)
    job.hear(1, messages.RankJoined(rank=1))

    assert [node for node, _ in job.of_kind(messages.End)] == [1, 1]


def test_deaths_that_the_contract_caused_are_no_breaches(start):
    """
    After the decision to end all processes each death is an action, not a new breach.
    """
    job = start()
    job.report(0, finding("liveness", 0))
    job.report(1, finding("liveness", 1))

    assert [entry.rank for entry in job.entries("breach")] == [0]
    assert [entry.rank for entry in job.entries("action")] == [1]


def test_strangers_are_counted_by_the_burst(start):
    """
    Any number of refused connections in one burst is one line with their number.
    """
    job = start()
    for _ in range(50):
        job.coordinator.on_strangers(20)
    job.pass_s(5, speaking=(0, 1))
    job.coordinator.on_strangers(3)
    for node in (0, 1):
        job.leave(node)
        job.done(node)

    assert [entry.evidence["num_refused"] for entry in job.entries("notice")] == [1000, 3]


def test_nobody_is_blamed_by_half_of_the_evidence(start):
    """
    A survey that a node does not answer judges nobody; a complete one does.
    """
    job = start()
    job.report(0, finding("hang", 0))
    number = job.of_kind(messages.AskSurvey)[-1][1].number
    job.hear(0, messages.Survey(number=number, positions=[position(0)]))
    job.pass_s(2, speaking=(0, 1))
    assert job.entries("breach") == []
    number = job.of_kind(messages.AskSurvey)[-1][1].number
    for node in (0, 1):
        job.hear(node, messages.Survey(number=number, positions=[position(node)]))

    assert [entry.rank for entry in job.entries("breach")] == [0]


def test_coordinator_gives_signs_of_life(start):
    """
    Every node that is not done hears from the coordinator each second.
    """
    job = start()
    job.pass_s(5, speaking=(0, 1))
    job.leave(0)
    job.done(0)
    job.pass_s(5, speaking=(1,))
    beats = [node for node, _ in job.of_kind(messages.Beat)]

    assert beats.count(0) == 5 and beats.count(1) == 10


def test_unknown_nodes_are_refused(start):
    """
    A message of a node that the job does not have is an error, and changes nothing.
    """
    job = start()
    for node in (2, -1):
        with pytest.raises(ValueError, match=f"node {node} spoke, but the job has 2"):
            job.hear(node, messages.RankJoined(rank=0))
    job.done(0)
    job.done(1)

    assert job.coordinator.is_finished


def test_first_exception_stands_out(start):
    """
    The first exception of any rank has a kind of its own; later ones are notices.
    """
    job = start()
    for rank in (1, 0):
        job.hear(
            rank,
            messages.FirstException(rank=rank, step=3, phase=position(0).pulse.phase, error="no"),
        )
        job.leave(rank, "no")
    for node in (0, 1):
        job.done(node)

    assert [entry.rank for entry in job.entries("first_exception")] == [1]
    assert [entry.rank for entry in job.entries("notice")] == [0]
    assert job.messages("end") == ["Training ended by an exception on rank 1."]


def test_uneven_data_is_told_before_training(start):
    """
    Ranks with different numbers of batches are told of once all have said theirs; those
    without a number are left out.
    """
    job = start(num_nodes=1, ranks_of_node=3)
    for rank, num_batches in ((0, 8), (1, None)):
        job.hear(0, messages.RankFacts(rank=rank, num_batches=num_batches))
    assert job.messages("notice") == []
    job.hear(0, messages.RankFacts(rank=2, num_batches=5))

    assert "rank 0: 8, rank 2: 5" in job.messages("notice")[0]


def test_samples_of_nodes_meet(start):
    """
    Samples of one step that come from different nodes are judged together.
    """
    job = start()
    for node in (0, 1):
        job.report(node, samples=(Sample(rank=node, step=4, time_s=1.0, loss=1.0),))
    for node in (0, 1):
        job.leave(node)
        job.done(node)
    counts = {entry.rule: entry.evidence["num_samples"] for entry in job.entries("verdict")}

    assert counts["loss_variance"] == 1


def position(rank: int) -> messages.Position:
    """Rank 0 is stuck in its own code; all others wait for it in a collective."""
    frame = "/user/model.py:3 loss" if rank == 0 else "/torch/distributed/x.py:1 wait"
    pulse = Pulse(
        rank=rank,
        time_s=50.0,
        is_alive=True,
        process_state="S",
        step=7,
        phase=finding("hang", rank).phase,
        since_progress_s=20.0,
        num_steps=7,
    )
    return messages.Position(pulse=pulse, change=rank + 1, stack=[frame])
