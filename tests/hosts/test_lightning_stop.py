"""A stop in Lightning: all ranks at the same step, and nothing of the breach is kept."""

import pickle
import re
import threading
from typing import Any

import pytest

from sla_lightning import SLACallback

from ._runs import entries, told

pytestmark = [pytest.mark.ranks, pytest.mark.slow]


@pytest.mark.parametrize(
    ("num_ranks", "num_micro"),
    [pytest.param(2, 1, marks=pytest.mark.smoke), (2, 4), (4, 1)],
    ids=["2", "2-accumulating", "4"],
)
def test_all_ranks_stop_at_one_step_and_keep_nothing(
    ranks: Any, num_ranks: int, num_micro: int
) -> None:
    """
    With a NaN on one rank only, every rank stops at the end of the same step: ``fit``
    returns, whatever ``min_steps`` says, without a validation and without a checkpoint of
    the state in breach, and afterwards the trainer works as ever.
    """
    ended = ranks(
        "stop.py",
        num_micro,
        "stop",
        num_ranks=num_ranks,
        env={"SLA_INJECT": f"nan:rank={num_ranks - 1},step=45,what=batch"},
    )

    assert ended.succeeded(), ended
    fits = [told(out, "fit") for out in ended.out.values()]
    (stopped_at,) = {fit["stopped_at"] for fit in fits}
    assert 45 <= stopped_at < 79
    assert {fit["global_step"] for fit in fits} == {stopped_at + 1}
    assert {fit["status"] for fit in fits} == {"finished"}
    assert {fit["num_validations"] for fit in fits} == {0}
    assert set(fits[0]["steps_on_disk"].values()) == {40}, fits[0]
    after = told(ended.out[0], "after")
    assert after["steps_on_disk"]["afterwards.ckpt"] == stopped_at + 1
    assert after["num_validations"] == 1
    assert told(ended.out[0], "finalized")["status"] == "success"


def test_a_restart_ends_every_rank_by_an_error_and_keeps_nothing(ranks: Any) -> None:
    """
    Where the contract wants the job started again ``fit`` raises on all ranks at the end of the
    same step, so that a launcher does so, and like a stop it validates and saves nothing.
    """
    ended = ranks("stop.py", 1, "restart", env={"SLA_INJECT": "nan:rank=1,step=45,what=batch"})

    assert set(ended.exit_codes.values()) == {1}, ended
    ends = [told(out, "ended") for out in ended.out.values()]
    (stopped_at,) = {end["stopped_at"] for end in ends}
    assert 45 <= stopped_at < 79
    assert all(f"step {stopped_at} to have it started again" in end["error"] for end in ends)
    assert {end["num_validations"] for end in ends} == {0}
    assert set(ends[0]["steps_on_disk"].values()) == {40}, ends
    assert entries(ranks.run_dir, "first_exception") == []
    assert entries(ranks.run_dir, "decision")[0].action == "restart"


def test_the_report_names_rank_step_batch_and_what_was_spoilt_first(ranks: Any) -> None:
    """
    A NaN in the second of four micro-batches on rank 1 is reported with rank, optimizer
    step, batch number and the input as the first quantity that was not finite; the ledger
    shows the decision before the actions, and the same step for all ranks.
    """
    ended = ranks("one_nan_batch.py")

    assert ended.succeeded(), ended
    (breach,) = entries(ranks.run_dir, "breach", rule="non_finite")
    assert (breach.rank, breach.step) == (1, 6)
    assert breach.evidence["batch"] == 4 * 6 + 1
    assert breach.evidence["non_finite"][0] == "input"
    assert re.search(r"rank 1\b.*step 6\b", breach.message)
    lines = entries(ranks.run_dir, "decision", "action")
    assert (lines[0].kind, lines[0].rank) == ("decision", 1)
    assert {line.evidence.get("at_step", lines[0].step) for line in lines} == {lines[0].step}
    assert {line.rank for line in lines[1:]} == {0, 1, None}


@pytest.mark.parametrize(("strategy", "num_ranks"), [("ddp_spawn", 1), ("ddp_fork", 2)])
def test_ranks_that_lightning_starts_itself_are_watched(
    ranks: Any, strategy: str, num_ranks: int
) -> None:
    """
    A callback that reached its ranks by pickle, or by a fork, watches and stops them.
    """
    ended = ranks(
        "spawned.py",
        strategy,
        num_ranks,
        num_ranks=1,
        env={"SLA_INJECT": f"nan:rank={num_ranks - 1},step=30"},
    )

    assert ended.succeeded(), ended
    assert told(ended.out[0], "fit")["status"] == "finished"
    carried_out = entries(ranks.run_dir, "action")[-1]
    assert carried_out.evidence["ranks"] == list(range(num_ranks))
    assert 30 <= carried_out.step < 199


def test_a_callback_in_use_can_be_pickled() -> None:
    """
    What holds sockets and shared memory stays behind; the settings travel.
    """
    callback = SLACallback("L2", "somewhere")
    callback._run = threading.Lock()

    copy = pickle.loads(pickle.dumps(callback))

    assert vars(copy) == {**vars(callback), "_run": None}
