"""Rollbacks: who can, how often, what is new after one, and where it ends."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slav1.breach import Breach
from slav1.contract import CheckpointSettings
from slav1.coordinator import messages
from slav1.coordinator.job_guard import JobGuard
from slav1.coordinator.rollbacks import Rollbacks, bad_steps, earlier_rollbacks
from slav1.decision import Action
from slav1.sample import Sample

from ._books import Job, finding


@pytest.fixture
def start(tmp_path: Any) -> Iterator[Any]:
    jobs = []

    def _start(can: tuple[int, ...] = (0, 1), **settings: Any) -> Job:
        job = Job(tmp_path, **settings)
        jobs.append(job)
        for rank in (0, 1):
            job.hear(rank, messages.RankJoined(rank=rank, can_roll_back=rank in can))
        return job

    yield _start
    for job in jobs:
        job.close()


def schedule(job: Job, step: int = 20) -> messages.Schedule:
    """Both nodes hold for the newest decision; returns what they are told."""
    number = job.of_kind(messages.Hold)[-1][1].number
    for node in (0, 1):
        job.hear(node, messages.Acknowledged(number=number, step=step))
    scheduled: messages.Schedule = job.of_kind(messages.Schedule)[-1][1]
    return scheduled


def come_back(
    job: Job, *ranks: int, to_step: int = 9, is_done: bool = True, latency_s: float = 0.5
) -> None:
    number = job.of_kind(messages.Schedule)[-1][1].number
    for rank in ranks:
        job.hear(rank, messages.RankWentBack(rank=rank, to_step=to_step))
    for rank in ranks if is_done else ():
        done = messages.CarriedOut(number=number, rank=rank, step=20, latency_s=latency_s)
        job.hear(rank, done)


def actions(job: Job) -> list[str | None]:
    return [entry.action for entry in job.entries("decision")]


@pytest.mark.parametrize(("can", "action"), [((0, 1), "rollback"), ((0,), "stop"), ((), "stop")])
def test_a_rollback_needs_every_rank(start, can, action):
    """
    A breach goes back only if the hosts of all ranks can; a stop stands for it otherwise,
    in the decision and in the line of the breach.
    """
    job = start(can)
    job.report(1, finding("non_finite", 1, evidence={"first": "loss"}))
    told = schedule(job)

    assert Action(told.action).name.lower() == action
    assert actions(job) == [action]
    assert [entry.action for entry in job.entries("breach")] == [action]
    assert (told.rule, told.rank, told.onset_step, told.alarm_step) == ("non_finite", 1, 7, 7)


def test_training_goes_on_when_all_are_back(start):
    """
    When every rank is back that is written once, the incident is over, and the next breach
    is decided anew; the run does not count as stopped.
    """
    job = start()
    job.report(1, finding("non_finite", 1))
    schedule(job)
    come_back(job, 0)
    assert job.entries("restored") == []
    come_back(job, 1)
    (restored,) = job.entries("restored")
    job.report(0, finding("non_finite", 0, step=30))
    schedule(job, step=31)
    come_back(job, 0, 1, to_step=29)
    for rank in (0, 1):
        job.leave(rank)
        job.done(rank)

    assert (restored.step, restored.evidence["from_step"]) == (9, 20)
    assert "training goes on with step 10" in (restored.message or "")
    assert len(job.entries("incident_end")) == 2
    assert actions(job) == ["rollback", "rollback"]
    assert job.messages("end") == ["Training ended."]


def test_each_rollback_tells_its_own_time(start):
    """
    How long a rollback took is the longest time of its own ranks, not of an earlier one's.
    """
    job = start()
    for step, latency_s in ((7, 0.5), (30, 0.25)):
        job.report(1, finding("non_finite", 1, step=step))
        schedule(job, step=step + 1)
        come_back(job, 0, 1, to_step=step - 1, latency_s=latency_s)

    assert [entry.evidence["rollback_s"] for entry in job.entries("restored")] == [0.5, 0.25]


def test_recovery_is_the_first_new_step_past_the_fault(start):
    """
    Steps on the way to the rollback, and those that are made again after it, are no
    recovery; the first one past the step at fault is, on all ranks, and is told once.
    """
    job = start()

    def make_steps(*steps: int) -> list[int | None]:
        for step in steps:
            for rank in (0, 1):
                sample = Sample(rank=rank, step=step, time_s=float(step), loss=2.0)
                job.report(rank, samples=(sample,))
        return [e.step for e in job.entries("incident_end") if e.rule == "recovery_time"]

    job.report(1, finding("non_finite", 1, step=11))
    assert make_steps(12, 13) == []
    schedule(job)
    come_back(job, 0, 1)
    assert make_steps(10, 11) == []
    assert make_steps(12, 13) == [12]
    (line,) = (e for e in job.entries("incident_end") if e.rule == "recovery_time")
    assert line.evidence["fault"] == "non_finite"
    assert 0.0 <= line.evidence["seconds"] < 60.0


@pytest.mark.parametrize(("rank", "num_decisions"), [(0, 2), (1, 1)])
def test_only_what_is_new_leads_to_another_rollback(start, rank, num_decisions):
    """
    While ranks are on their way back, a breach of one that is back already is acted on
    afterwards; one of a rank that is not is from before, and covered.
    """
    job = start()
    job.report(1, finding("non_finite", 1))
    schedule(job)
    come_back(job, 0, is_done=False)
    job.report(rank, finding("non_finite", rank, step=12))
    come_back(job, 1)
    come_back(job, 0)
    assert len({message.number for _, message in job.of_kind(messages.Hold)}) == num_decisions


def test_a_stop_comes_after_a_rollback_that_is_under_way(start):
    """
    A breach that asks for a stop while ranks go back is decided when all are back.
    """
    job = start(non_finite={"action": "stop"}, loss_variance={"mode": "enforce"})
    job.report(0, finding("loss_variance", 0))
    schedule(job)
    job.report(1, finding("non_finite", 1))
    come_back(job, 0, 1)
    schedule(job)

    assert actions(job) == ["rollback", "stop"]


def test_ranks_that_went_back_to_different_steps_are_stopped(start):
    """
    If the ranks say different steps, that is told, and the next decision is a stop.
    """
    job = start()
    job.report(1, finding("non_finite", 1))
    schedule(job)
    come_back(job, 0, to_step=9)
    come_back(job, 1, to_step=8)
    told = schedule(job)

    assert Action(told.action) is Action.STOP
    assert "rank 0: 9, rank 1: 8" in told.reason
    assert job.entries("restored") == []


def test_ranks_that_parted_are_ended_if_one_is_lost_too(start):
    """
    If a rank is lost while the others have gone back to different steps, no step can be
    agreed on any more, and every node is told to end its processes.
    """
    job = start()
    job.report(1, finding("non_finite", 1))
    schedule(job)
    come_back(job, 0, to_step=9)
    job.hear(1, messages.RankWentBack(rank=1, to_step=8))
    job.hear(0, messages.RankLeft(rank=0, is_lost=True, reason="lost"))
    number = job.of_kind(messages.Schedule)[-1][1].number
    job.hear(1, messages.CarriedOut(number=number, rank=1, step=20, latency_s=0.5))

    assert {node for node, _ in job.of_kind(messages.End)} == {0, 1}


def test_a_run_without_a_good_checkpoint_stops(start):
    """
    If no rank goes back, all have stopped instead: that is what each one's line says, and
    the run ends with that word.
    """
    job = start()
    job.report(1, finding("non_finite", 1))
    number = schedule(job).number
    for rank in (0, 1):
        job.hear(rank, messages.CarriedOut(number=number, rank=rank, step=20, latency_s=0.1))
    job.report(0, finding("non_finite", 0, step=21))
    for rank in (0, 1):
        job.leave(rank)
        job.done(rank)

    assert any("all stop instead" in text for text in job.messages("notice"))
    assert job.messages("action") == [
        "Rank 0 had no way back and stopped at the end of step 20.",
        "Rank 1 had no way back and stopped at the end of step 20.",
        "All 2 ranks stopped at the end of step 20.",
    ]
    assert actions(job) == ["rollback"]
    assert job.messages("end")[0].startswith("The contract stopped training at step 20")


def test_too_many_rollbacks_stop_training(start):
    """
    One rollback more than allowed becomes a stop that says so; with none allowed, the first.
    """
    job = start(checkpoint={"max_rollbacks": 0})
    job.report(1, finding("non_finite", 1))
    told = schedule(job)

    assert Action(told.action) is Action.STOP
    assert "at most 0 are allowed (checkpoint.max_rollbacks" in told.reason


def test_a_host_may_ask_for_a_rollback(start):
    """
    What every rank asks for is decided once, with the steps that the host names.
    """
    job = start()
    for rank in (0, 1):
        wish = messages.RankWants(rank=rank, reason="Copies differ.", step=40, onset_step=31)
        job.hear(rank, wish)
    told = schedule(job, step=41)

    assert len(job.of_kind(messages.Hold)) == 2
    assert (Action(told.action), told.rule, told.reason) == (
        Action.ROLLBACK,
        "checkpoint",
        "Copies differ.",
    )
    assert (told.onset_step, told.alarm_step) == (31, 40)


def test_a_host_may_ask_again_at_a_step_that_is_made_again(start):
    """
    What was asked for before a rollback is done with: the same step may give rise to the next.
    """
    job = start()
    for _ in range(2):
        for rank in (0, 1):
            wish = messages.RankWants(rank=rank, reason="Copies differ.", step=20, onset_step=None)
            job.hear(rank, wish)
        schedule(job)
        come_back(job, 0, 1)

    assert actions(job) == ["rollback", "rollback"]


@pytest.mark.parametrize(
    ("steps", "now", "is_allowed"),
    [([], 5, True), ([10, 20], 30, True), ([10, 20, 30], 109, False), ([10, 20, 30], 110, True)],
)
def test_rollbacks_are_counted_by_steps(steps, now, is_allowed):
    """
    Three rollbacks within the window use up the limit; those from before it do not count,
    and those at steps that were done again do.
    """
    rollbacks = Rollbacks(CheckpointSettings(max_rollbacks=3, rollback_window_steps=100), steps)

    assert (rollbacks.why_not(now) is None) is is_allowed
    for step in (now + 50, now + 60, now + 70):
        rollbacks.add(step)
    assert rollbacks.why_not(now) is not None


def test_rollbacks_of_earlier_starts_are_read_from_the_ledger(start, tmp_path):
    """
    A later start knows the steps of the rollbacks before it, from a ledger cut anywhere;
    a run without one has had none.
    """
    job = start()
    job.report(1, finding("non_finite", 1, message='says "rollback" and "decision"'))
    schedule(job, step=33)
    ledger = next(tmp_path.glob("**/ledger.jsonl"))
    with ledger.open("ab") as file:
        file.write(b'{"kind": "decision", "action": "rollback", "st')

    assert earlier_rollbacks(ledger) == [33]
    assert earlier_rollbacks(Path("/nowhere/ledger.jsonl")) == []


@pytest.mark.parametrize(
    ("step", "evidence", "steps"),
    [
        (None, {}, (None, None)),
        (9, {}, (9, 9)),
        (9, {"first_step": 4}, (4, 9)),
        (9, {"first_step": 12}, (9, 9)),
        (9, {"first_step": None}, (9, 9)),
        (9, {"first": "loss"}, (9, 9)),
        (9, {"first": "parameters"}, (8, 9)),
        (0, {"first": "parameters"}, (0, 0)),
    ],
)
def test_a_breach_says_which_steps_are_bad(step, evidence, steps):
    """
    The onset is where the episode began; broken parameters come from the update before.
    """
    breach = Breach(
        rule="x",
        rank=0,
        step=step,
        statistic=None,
        limit=None,
        unit="",
        message="",
        evidence=evidence,
    )

    assert bad_steps(breach) == steps


def test_steps_that_are_done_again_meet_only_each_other(start):
    """
    After a rank went back, its samples meet no sample from before, and a checkpoint's
    question waits for the step as it is done again.
    """
    guard = JobGuard(start().coordinator._contract, 2)
    for rank, last in ((0, 20), (1, 15)):
        guard.observe(Sample(rank=rank, step=step, time_s=0.0, loss=1.0) for step in range(last))
    num_before = guard.num_seen["loss_variance"]
    assert guard.on_rank_back(0, 9, None) == (True, [])
    guard.observe([Sample(rank=1, step=15, time_s=0.0, loss=math.inf)])
    guard.observe([Sample(rank=0, step=15, time_s=0.0, loss=1.0)])
    guard.ask(0, messages.StateAsked(rank=0, step=12), 0.0)
    assert list(guard.answers(0.0)) == []
    assert guard.on_rank_back(1, 9, None) == (False, [])
    for rank in (0, 1):
        guard.observe(Sample(rank=rank, step=step, time_s=0.0, loss=1.0) for step in range(10, 13))
    ((_, answer),) = guard.answers(0.0)

    assert num_before == 15
    assert guard.num_seen["loss_variance"] == 18
    assert guard.num_dropped == 0
    assert answer.rank == 0


def test_batches_of_a_fault_that_is_none_of_the_data_are_kept():
    """
    A breach that says that its batches are good leads back to before it began, and names no
    step up to which batches would be left out.
    """
    breach = Breach(
        rule="replica_divergence",
        rank=1,
        step=100,
        statistic=1.0,
        limit=0.0,
        unit="tensors",
        message="",
        evidence={"first_step": 51, "are_batches_good": True},
    )

    assert bad_steps(breach) == (51, None)
