"""Hand-written loops with an ``SLAAccelerator`` on real ranks, with real faults."""

import json
from pathlib import Path
from typing import Any

import pytest

from slav1.ledger import read_ledger
from slav1.recorder.ring import read_ring_file

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

SCRIPT = Path(__file__).parent / "_scripts" / "accelerate_loop.py"


@pytest.fixture
def run(ranks: Any) -> Any:
    """Runs the loop on two ranks; keyword arguments are the script's options."""

    def start(fault: str = "", **options: Any) -> tuple[Any, list[Any]]:
        env = {"SLA_INJECT": fault} if fault else {}
        ended = ranks("accelerate_loop.py", json.dumps(options), env=env)
        return ended, ledger_of(ranks.jobs[-1].folder)

    return start


def ledger_of(folder: Path) -> list[Any]:
    """The entries of the only run under ``folder``."""
    (path,) = folder.glob("runs/*/ledger.jsonl")
    return list(read_ledger(path))


def told(ended: Any) -> list[dict[str, Any]]:
    """What each rank told at its end."""
    lines = [ended.out[rank].splitlines() for rank in sorted(ended.out) if rank >= 0]
    return [json.loads(line) for rank in lines for line in rank if line.startswith('{"tell"')]


def kinds(entries: list[Any], kind: str, rule: str | None = None) -> list[Any]:
    """Entries of a kind, of a rule if one is given."""
    return [e for e in entries if e.kind == kind and rule in (None, e.rule)]


def test_a_healthy_training_ends_in_order(run):
    """
    Nothing is reported about a healthy loop with an evaluation on one rank, longer than a
    step may last, at the end of each epoch; both ranks leave in good order.
    """
    ended, entries = run(evaluate_s=2.5, num_steps=40)

    assert ended.succeeded(), ended
    assert not [e.message for e in entries if e.kind in ("breach", "decision", "first_exception")]
    assert entries[-1].message == "Training ended."


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.smoke),
        pytest.param({"accumulate": 3}, marks=pytest.mark.thorough),
        {"optimizers": 2},
        {"on_stop": "flag"},
        pytest.param({"gather": True, "end": "finally"}, marks=pytest.mark.thorough),
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_all_ranks_stop_at_the_same_step(run, options):
    """
    A loss that is not finite on one rank stops both at the end of the same step, however
    the loop is written: by an exception and a non-zero exit code, or by the flag.
    """
    clauses = {"non_finite": {"action": "stop"}}
    ended, entries = run("nan:rank=1,step=20", num_steps=400, clauses=clauses, **options)

    (decision,) = kinds(entries, "decision")
    assert decision.rank == 1
    assert decision.step >= 20
    acted = [e.evidence["at_step"] for e in kinds(entries, "action") if e.rank is not None]
    assert acted == [decision.step] * 2
    assert kinds(entries, "action")[-1].message.startswith("All 2 ranks carried out stop")
    is_flag = options.get("on_stop") == "flag"
    assert ended.exit_codes == {0: 0, 1: 0} if is_flag else {0: 1, 1: 1}
    key = "stopped_at" if is_flag else "step"
    assert [end[key] for end in told(ended)] == [decision.step] * 2
    assert not kinds(entries, "first_exception")


def test_a_hang_is_found_and_ends_the_job(run):
    """
    A rank that hangs in its forward is named with phase and line, although the other one
    is just as silent, and every process ends with a non-zero code.
    """
    ended, entries = run("hang:rank=1,step=20", num_steps=400)

    (decision,) = kinds(entries, "decision", "hang")
    (breach,) = kinds(entries, "breach", "hang")[:1]
    assert (breach.rank, breach.step, breach.phase) == (1, 20, "forward")
    assert decision.rank == 1
    assert any("_effects.py" in frame for frame in breach.evidence["stack"])
    assert all(ended.exit_codes.values()), ended


def test_a_killed_rank_is_found_and_ends_the_job(run):
    """
    A rank that is killed is named as gone, and the other one does not stay behind.
    """
    ended, entries = run("kill:rank=1,step=20", num_steps=400)

    (decision,) = kinds(entries, "decision")
    assert (decision.rule, decision.rank) == ("liveness", 1)
    assert ended.exit_codes[1] == -9
    assert ended.exit_codes[0] != 0


@pytest.mark.parametrize("gather", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_straggler_is_named(run, gather):
    """
    The rank whose own work takes longer is named, also in a loop that gathers the loss
    before each backward, where all ranks wait for the slow one inside their forward.
    """
    _, entries = run(
        "straggler:rank=1,step=80,seconds=0.02",
        num_steps=200,
        step_s=0.01,
        gather=gather,
        clauses={"straggler": {"baseline_rounds": 60}},
    )

    assert {e.rank for e in kinds(entries, "breach", "straggler")} == {1}


def test_uneven_inputs_stay_unharmed(run, ranks):
    """
    Ranks with different numbers of batches train under join_uneven_inputs as they do
    without the contract, without a notice, and count steps alike after each epoch.
    """
    ended, entries = run(uneven=True, num_steps=50)

    assert ended.succeeded(), ended
    assert not [e.message for e in entries if e.kind in ("breach", "decision")]
    # What is looked at is told at the start of every run.
    told_at_start = ("seed_contract", "replica_divergence")
    notices = [e for e in entries if e.kind == "notice"]
    assert not [e.message for e in notices if e.rule not in told_at_start]
    assert [end["num_batches"] for end in told(ended)] == [60, 57]
    (folder,) = ranks.jobs[-1].folder.glob("runs/*")
    longer, shorter = ([s.step for s in read_ring_file(folder / f"ring-{r}.bin")] for r in (0, 1))
    assert longer == list(range(60))
    assert shorter == [step for step in range(60) if step % 20 != 19]


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        pytest.param("nan", "non_finite", marks=pytest.mark.thorough),
        pytest.param("hang", "hang", marks=pytest.mark.thorough),
        pytest.param("kill", "liveness", marks=pytest.mark.thorough),
    ],
)
def test_torchrun_sees_every_end_by_contract_as_a_failure(launch, fault, rule):
    """
    Under torchrun the rank at fault is named, the job ends with a non-zero code, and a
    stop is the same step on both ranks.
    """
    env = {"SLA_INJECT": f"{fault}:rank=1,step=20", "SLA_RUN_DIR": str(launch.folder / "runs")}
    how = {"num_steps": 400, "clauses": {"non_finite": {"action": "stop"}}}
    ended = launch.torchrun(SCRIPT, args=[json.dumps(how)], env=env)

    (decision,) = kinds(ledger_of(launch.folder), "decision")
    assert (decision.rule, decision.rank) == (rule, 1)
    assert ended.exit_codes[-1] != 0
    assert [end["step"] for end in told(ended)] == [decision.step] * 2 * (fault == "nan")


@pytest.mark.parametrize("end", ["never", pytest.param("finally", marks=pytest.mark.thorough)])
def test_an_exception_is_published_and_no_loss(launch, end):
    """
    A rank that dies of its own exception is named with it, whether the loop ends the
    training in a finally or not at all; it never counts as lost without a word.
    """
    env = {"SLA_INJECT": "exception:rank=1,step=20", "SLA_RUN_DIR": str(launch.folder / "runs")}
    options = json.dumps({"num_steps": 400, "end": end})
    ended = launch(SCRIPT, args=[options], env=env)

    entries = ledger_of(launch.folder)
    (first,) = kinds(entries, "first_exception")
    assert (first.rank, first.step) == (1, 20)
    assert "InjectedFaultError" in first.message
    assert not kinds(entries, "breach", "liveness")
    assert all(ended.exit_codes.values()), ended


def test_a_loop_that_never_says_goodbye_ends_in_order(run):
    """
    A script that ends without end_training is no lost rank and leaves its flight ring.
    """
    ended, entries = run(end="never", num_steps=40)

    assert ended.succeeded(), ended
    assert entries[-1].message == "Training ended."
    assert not kinds(entries, "breach")


def test_the_ring_knows_waiting_from_work(run, ranks):
    """
    On a rank that waits for a slower one the wait counts as gradient sync, not as work.
    """
    run("straggler:rank=1,step=0,seconds=0.02", num_steps=60, step_s=0.002)
    (folder,) = ranks.jobs[-1].folder.glob("runs/*")

    fast, slow = (read_ring_file(folder / f"ring-{rank}.bin")[10:] for rank in (0, 1))

    assert sum(s.sync_s for s in fast) > sum(s.sync_s for s in slow)
    assert sum(s.self_time_s for s in slow) > 2 * sum(s.self_time_s for s in fast)
