"""A hand-written loop that its launcher starts again after a rank was killed."""

from pathlib import Path

import pytest

from slav1.ledger import read_ledger

SCRIPT = Path(__file__).parent / "_scripts" / "accelerate_restart.py"

pytestmark = [pytest.mark.ranks, pytest.mark.slow]


def restarted(launch, how):
    env = {
        "SLA_INJECT": "kill:rank=1,step=35",
        "SLA_RUN_DIR": str(launch.folder / "runs"),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    ended = launch.torchrun(SCRIPT, args=[how], max_restarts=1, env=env, timeout_s=150)
    (ledger,) = (launch.folder / "runs").glob("*/ledger.jsonl")
    return ended, read_ledger(ledger)


@pytest.mark.thorough
def test_a_killed_loop_goes_on_from_its_last_good_checkpoint(launch):
    """
    The rank that was killed is named, the job is started again by torchrun, goes on after
    the last good checkpoint with no step lost behind it, and the way back is timed.
    """
    ended, entries = restarted(launch, "resumes")

    assert ended.succeeded(), ended
    assert ended.out[0].split() == ["made", "60"]
    (breach,) = (entry for entry in entries if entry.kind == "breach")
    assert (breach.rule, breach.rank) == ("liveness", 1)
    (restored,) = (entry for entry in entries if entry.kind == "restored")
    assert (restored.attempt, restored.step) == (1, 29)
    (recovered,) = (entry for entry in entries if entry.rule == "recovery_time")
    assert (recovered.attempt, recovered.step) == (1, 36)


@pytest.mark.thorough
def test_a_loop_that_loads_nothing_is_told_so(launch):
    """
    A script that loads no checkpoint is started again all the same, makes all steps anew,
    and the ledger says what is missing.
    """
    ended, entries = restarted(launch, "does not")

    assert ended.succeeded(), ended
    told = [e.message for e in entries if e.kind == "notice" and "load_state" in (e.message or "")]
    assert len(told) == 1
    assert "start 2 of the run" in told[0]
