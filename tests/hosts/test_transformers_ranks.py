"""A ``transformers.Trainer`` under contract on two real ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from ._runs import messages, told

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

BACK = {"non_finite": {"reflex": False, "action": "rollback"}}


def test_two_ranks_go_back_and_see_the_same_again(ranks: Any, tmp_path: Path) -> None:
    """
    After a NaN on rank 1 both ranks leave the host's loop at the end of the same step and enter
    it again at the last checkpoint before: every loss from there on is that of a training in
    which nothing happened, and the weights are the same on both ranks.
    """
    options = {"clauses": BACK, "skip_bad_batches": False, "max_steps": 16}
    ended = ranks(
        "trainer_ranks.py",
        json.dumps({"folder": str(tmp_path / "a"), **options}),
        env={"SLA_INJECT": "nan:rank=1,step=9"},
    )
    unbroken = ranks("trainer_ranks.py", json.dumps({"folder": str(tmp_path / "b"), **options}))

    assert ended.succeeded() and unbroken.succeeded(), ended
    runs = [told(out, "ended") for out in ended.out.values()]
    alone = [told(out, "ended") for out in unbroken.out.values()]
    assert runs[0]["steps"] == runs[1]["steps"]
    assert alone[0]["steps"] == list(range(1, 17)) != runs[0]["steps"]
    assert runs[0]["losses"] == alone[0]["losses"]
    assert len({one["weights"] for one in (*runs, *alone)}) == 1


def test_a_stop_is_carried_out_by_both_ranks(ranks: Any, tmp_path: Path) -> None:
    """
    After a stop ``train`` returns on both ranks at the same step, and nothing was evaluated or
    saved of the state in breach.
    """
    options = {
        "clauses": {"non_finite": {"reflex": False, "action": "stop"}},
        "max_steps": 200,
        "save_steps": 8,
        "eval_strategy": "steps",
        "eval_steps": 8,
        "load_best_model_at_end": True,
    }
    ended = ranks(
        "trainer_ranks.py",
        json.dumps({"folder": str(tmp_path / "a"), **options}),
        env={"SLA_INJECT": "nan:rank=1,step=9"},
    )

    assert ended.succeeded(), ended
    first, second = (told(out, "ended") for out in ended.out.values())
    assert first["steps"] == second["steps"]
    assert first["stopped_at"] == second["stopped_at"] == first["steps"][-1] - 1 < 150
    assert int(first["events"][-1].split()[-1]) <= first["stopped_at"]
    assert "All 2 ranks carried out stop" in messages(ranks.run_dir, "action")[-1]
