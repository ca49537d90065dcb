"""Endings that wait for a good checkpoint: which do, until when, and what takes them back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slav1.breach import Breach
from slav1.coordinator import messages
from slav1.coordinator.after_commit import AfterCommit
from slav1.decision import Action

from ._books import Job, finding, recovery


def breach(*, rank=1, **evidence):
    return Breach(
        rule="memory_drift",
        rank=rank,
        step=100,
        statistic=1.0,
        limit=0.0,
        unit="MiB per step",
        message="Host memory of rank 1 grows.",
        evidence=evidence,
    )


@pytest.mark.parametrize("action", [Action.STOP, Action.RESTART])
def test_an_ending_waits_for_the_next_commit(action):
    """
    A stop or restart that may wait is taken at the next checkpoint that counts, once, and
    says so.
    """
    put_off = AfterCommit()

    assert put_off.takes(action, breach(may_wait_s=60.0), 10.0).until_s == 70.0
    assert put_off.on_tick(69.9) == []
    (due,) = put_off.on_commit(119)

    assert due.action is action
    assert due.breach.message.endswith("The checkpoint of step 119 has just been committed.")
    assert put_off.on_commit(139) == put_off.on_tick(1e9) == []


def test_it_never_waits_past_its_time():
    """
    Without a checkpoint it is taken when the time is up, and a later breach can only make
    that sooner.
    """
    put_off = AfterCommit()
    put_off.takes(Action.STOP, breach(may_wait_s=60.0), 10.0)

    assert put_off.takes(Action.STOP, breach(may_wait_s=600.0), 20.0).until_s == 70.0
    assert [due.breach.message for due in put_off.on_tick(70.0)] == ["Host memory of rank 1 grows."]
    assert put_off.on_tick(71.0) == []


@pytest.mark.parametrize(
    ("action", "evidence"),
    [
        (Action.STOP, {}),
        (Action.STOP, {"may_wait_s": 0.0}),
        (Action.STOP, {"may_wait_s": "long"}),
        (Action.STOP, {"may_wait_s": True}),
        (Action.ROLLBACK, {"may_wait_s": 60.0}),
    ],
)
def test_what_may_not_wait_is_left_alone(action, evidence):
    """
    A breach that says nothing about waiting, and an action that ends nothing, are not put off.
    """
    put_off = AfterCommit()

    assert put_off.takes(action, breach(**evidence), 10.0) is None
    assert put_off.on_commit(119) == []


def test_a_reason_that_is_gone_takes_it_back():
    """
    When the incident ends before a checkpoint comes, nothing is done; another rank's waits on.
    """
    put_off = AfterCommit()
    put_off.takes(Action.STOP, breach(may_wait_s=60.0), 10.0)
    put_off.takes(Action.STOP, breach(rank=2, may_wait_s=60.0), 10.0)

    put_off.forget("memory_drift", 1)

    assert [due.breach.rank for due in put_off.on_commit(None)] == [2]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, memory_drift={"mode": "enforce", "action": "stop"}).start()
    yield job
    job.close()


def commit(job):
    note = messages.RankNote(
        rank=0, step=119, message="A checkpoint is committed.", kind="checkpoint_committed"
    )
    job.hear(0, note)


def test_a_job_stops_after_the_next_commit(job):
    """
    The coordinator holds an enforced stop for a drift back, says so, and proposes it to all
    nodes when a rank tells of a commit.
    """
    job.report(0, finding("memory_drift", 0, evidence={"may_wait_s": 60.0}))
    assert job.of_kind(messages.Hold) == []
    assert "waits for the next checkpoint" in job.path.read_text()

    commit(job)

    assert [node for node, _ in job.of_kind(messages.Hold)] == [0, 1]


@pytest.mark.parametrize(("seconds", "num_holds"), [(58, 0), (61, 2)])
def test_a_job_without_checkpoints_stops_in_time(job, seconds, num_holds):
    """
    Where no checkpoint comes the stop is proposed when its time is up, and not before.
    """
    job.report(0, finding("memory_drift", 0, evidence={"may_wait_s": 60.0}))

    job.pass_s(seconds, speaking=(0, 1))

    assert len(job.of_kind(messages.Hold)) == num_holds


def test_a_job_whose_memory_is_well_again_goes_on(job):
    """
    A drift that ends before a checkpoint comes stops nobody.
    """
    job.report(0, finding("memory_drift", 0, evidence={"may_wait_s": 60.0}))
    job.report(0, recovery("memory_drift", 0))

    commit(job)

    assert job.of_kind(messages.Hold) == []
