"""What every host promises: one suite, so that none of them can drift from the others.

A host joins by its line in ``HOSTS`` of ``_scripts/hosts.py``.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hosts import HOSTS, Batch, Ended, Task

from slav1.checkpoint.formats import examine
from slav1.ledger import Entry, read_ledger
from slav1.phase import Phase
from slav1.recorder.ring import read_ring_file
from slav1.sample import Sample

from ._runs import told

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]

STOPS = {"non_finite": {"action": "stop", "reflex": False}}
GOES_BACK = {"non_finite": {"mode": "enforce", "action": "rollback", "reflex": False}}
HANGS = {"hang": {"limit_s": 0.3, "first_step_limit_s": 60.0, "mode": "observe"}}
# Long enough for a monitor to see a bad step before the data is at its end.
SLOW_S = 0.03


@pytest.fixture(params=HOSTS)
def train(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Trains with one of the hosts; arguments as for :class:`Task`."""

    def run(**settings: Any) -> tuple[Task, Ended]:
        task = Task(folder=tmp_path, **settings)
        return task, HOSTS[request.param](task)

    return run


def ledger(ended: Ended, *kinds: str) -> list[Entry]:
    """Lines of the run's ledger, of these kinds if any are given."""
    lines = read_ledger(ended.run_folder / "ledger.jsonl")
    return [line for line in lines if not kinds or line.kind in kinds]


def samples(ended: Ended) -> list[Sample]:
    """The steps that were recorded."""
    return read_ring_file(ended.run_folder / "ring-0.bin")


def check_healthy(ended: Ended) -> None:
    """Nothing was found and nothing done, and the run was left in good order."""
    assert (ended.error, ended.stopped_at) == (None, None)
    assert not ledger(ended, "breach", "decision", "action", "first_exception", "incident_begin")
    assert [line.message for line in ledger(ended, "end")] == ["Training ended."]


def weights(batches: list[Batch]) -> dict[int, float]:
    """The weight at the beginning of each step, the last time it was made."""
    return {batch.step: batch.weight for batch in batches}


@pytest.mark.smoke
def test_a_healthy_training_is_recorded_and_nothing_else(train):
    """
    Every step is recorded, in order and with all that belongs to it; the phases are those that
    the code is in, an evaluation that is longer than a step may last is no hang, nothing is
    reported, and no hook stays on the user's objects.
    """
    task, ended = train(evaluate_s=0.7, clauses=HANGS)

    check_healthy(ended)
    found = samples(ended)
    assert [one.step for one in found] == list(range(12))
    assert [one.batch for one in found] == list(range(12))
    assert all(one.loss is not None and one.grad_norm is not None for one in found)
    timed = [(s.step_time_s, s.data_s, s.forward_s, s.optimizer_s) for s in found[1:]]
    assert all(value is not None for times in timed for value in times)
    assert task.phases == {
        ("data", Phase.DATA),
        ("forward", Phase.FORWARD),
        ("backward", Phase.BACKWARD),
        ("optimizer", Phase.OPTIMIZER),
        ("evaluation", Phase.EVALUATION),
    }
    model, optimizer = task.objects
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_a_step_that_stands_still_is_found(train):
    """
    The same length inside of a step is found as a hang, with its step and its phase, and as over
    when the step goes on.
    """
    _, ended = train(pause_s=0.7, clauses=HANGS)

    (breach,) = ledger(ended, "breach")
    assert (breach.rule, breach.rank, breach.step, breach.phase) == ("hang", 0, 8, "forward")
    assert len(ledger(ended, "incident_end")) == 1
    assert [one.step for one in samples(ended)] == list(range(12))


def test_accumulated_batches_are_one_step(train):
    """
    Four batches of one update are one step, with the mean of their losses; what is left at
    the end of an epoch is one too.
    """
    task, ended = train(accumulate=4, num_batches=10)

    check_healthy(ended)
    found = samples(ended)
    assert [(one.step, one.batch) for one in found] == [(0, 3), (1, 7), (2, 9)]
    assert [batch.step for batch in task.batches] == [0] * 4 + [1] * 4 + [2] * 2
    first = [(batch.weight * (sum(batch.items) / 2) / 100) ** 2 for batch in task.batches[:4]]
    assert found[0].loss == pytest.approx(sum(first) / 4, rel=0.2)


def test_an_exception_of_the_user_s_is_the_user_s(train):
    """
    What the user's code raises comes out as it is, is written down with its step, and is no
    breach and no lost rank.
    """
    _, ended = train(raises_at=9)

    assert isinstance(ended.error, KeyError)
    (first,) = ledger(ended, "first_exception")
    assert (first.rank, first.step) == (0, 4)
    assert "KeyError" in first.message
    assert not ledger(ended, "breach", "decision")
    assert [one.step for one in samples(ended)] == [0, 1, 2, 3]


def test_a_bad_update_is_left_out(train):
    """
    A gradient that is not finite reaches no weight: the step counts, the weight stays, and
    training goes on.
    """
    task, ended = train(bad_items=(10,), step_s=SLOW_S)

    assert (ended.error, ended.stopped_at) == (None, None)
    after = weights(task.batches)
    assert after[5] == after[6] != after[7]
    assert [one.step for one in samples(ended) if one.is_update_left_out] == [5]
    assert [one.step for one in samples(ended)] == list(range(12))
    assert ledger(ended, "breach")[0].rule == "non_finite"


def test_a_stop_is_a_stop_and_saves_nothing(train):
    """
    A stop ends training at the step that was decided on, without a save on the way out; the
    run is left in good order.
    """
    task, ended = train(bad_items=(10,), step_s=SLOW_S, save_at=(2, 11), clauses=STOPS)

    (decision,) = ledger(ended, "decision")
    assert ended.error is None
    assert 5 <= ended.stopped_at == decision.step < 11
    assert task.batches[-1].step == samples(ended)[-1].step == ended.stopped_at
    assert not task.path_of(11).exists()
    assert len(ledger(ended, "checkpoint_committed")) == 1
    assert ledger(ended, "end")


def test_a_save_is_proved_and_taken_up_again(train):
    """
    A checkpoint is committed and whole; the next start goes on from it, with its weights, its
    next batch and the number of its next step.
    """
    task, ended = train(save_at=(4,))
    again, resumed = train(loads=True)

    check_healthy(ended)
    check_healthy(resumed)
    assert len(ledger(ended, "checkpoint_committed")) == 1
    assert examine(task.path_of(4)).is_whole
    assert again.batches == task.batches[5:]
    assert [one.step for one in samples(resumed)] == list(range(5, 12))


def test_a_rollback_is_the_checkpoint_again(train):
    """
    After a rollback the weight is that of the checkpoint, steps count on from it, the bad
    batch is not met again, and training goes on to its end.
    """
    task, ended = train(
        bad_items=(10,), step_s=SLOW_S, save_at=(2,), num_batches=16, clauses=GOES_BACK
    )

    assert (ended.error, ended.stopped_at) == (None, None)
    (restored,) = ledger(ended, "restored")
    assert restored.step == 2
    made = [batch.step for batch in task.batches]
    back = next(n for n, (a, b) in enumerate(itertools.pairwise(made), start=1) if b < a)
    assert made[back] == 3
    assert task.batches[back].weight == task.batches[3].weight
    assert task.batches[back].items == task.batches[3].items
    assert made[back:] == list(range(3, 3 + len(made) - back))
    assert [10, 11] not in [batch.items for batch in task.batches[back:]]
    assert task.batches[-1].items == [30, 31]
    assert [line.message for line in ledger(ended, "end")] == ["Training ended."]


@pytest.mark.parametrize(
    "host",
    [
        pytest.param(
            host, marks=() if host in ("lightning", "accelerate") else pytest.mark.thorough
        )
        for host in HOSTS
    ],
)
def test_two_ranks_do_the_same(ranks, host):
    """
    A gradient that one rank spoils is left out by both at the same step, with the same weights
    afterwards; waiting for the other rank is told from own work; a stop is the same step on
    both.
    """
    ended = ranks("host_ranks.py", host)

    assert ended.succeeded(), ended
    first, second = (told(ended.out[rank], "left out") for rank in (0, 1))
    assert first["weights"] == second["weights"]
    assert first["is_sync_timed"] and second["is_sync_timed"]
    bad = {*first["bad_steps"], *second["bad_steps"]}
    assert first["left_out"] == second["left_out"] == [*bad] and len(bad) == 1
    first, second = (told(ended.out[rank], "stopped") for rank in (0, 1))
    assert first["stopped_at"] == second["stopped_at"] >= min(bad)
    assert first["last_step"] == second["last_step"] == first["stopped_at"]
    assert first["decisions"] == [first["stopped_at"]]
