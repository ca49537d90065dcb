"""A ``transformers.Trainer`` under contract on two real ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="pip install -e '.[transformers]'")

from ._runs import entries, messages, told

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


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "rule"), [("hang", "hang"), ("kill", "liveness")])
def test_a_rank_that_is_stuck_or_gone_ends_the_job(ranks: Any, tmp_path: Path, fault, rule) -> None:
    """
    A rank that hangs in its forward, or is killed, is named with its step, and every process
    ends with an error.
    """
    ended = ranks(
        "trainer_ranks.py",
        json.dumps({"folder": str(tmp_path / "a"), "max_steps": 200}),
        env={"SLA_INJECT": f"{fault}:rank=1,step=9"},
    )

    assert all(ended.exit_codes.values()), ended
    breach = entries(ranks.run_dir, "breach", rule=rule)[0]
    assert (breach.rank, breach.step) == (1, 9)


@pytest.mark.thorough
def test_a_killed_training_goes_on_from_its_last_good_checkpoint(launch: Any) -> None:
    """
    Started again by torchrun, a script that asks for nothing goes on after the last checkpoint;
    here with an adapter of PEFT.
    """
    env = {
        "SLA_INJECT": "kill:rank=1,step=10",
        "SLA_RUN_DIR": str(launch.folder / "runs"),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    options = {"folder": str(launch.folder / "job"), "is_lora": True, "max_steps": 14}
    script = Path(__file__).parent / "_scripts" / "trainer_ranks.py"
    how = {"args": [json.dumps(options)], "max_restarts": 1, "timeout_s": 200}

    ended = launch.torchrun(script, env=env, **how)

    assert ended.succeeded(), ended
    for rank in (0, 1):
        assert told(ended.out[rank], "ended")["steps"] == [9, 10, 11, 12, 13, 14]
    restored = entries(launch.folder / "runs", "restored")
    assert [(line.attempt, line.step) for line in restored] == [(1, 7)]


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
