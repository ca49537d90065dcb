"""Public cases of hangs and of what is mistaken for one, on two real ranks."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from slav1.ledger import Entry

from ._runs import entries, messages, run_folders, told

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

SCRIPTS = Path(__file__).parent / "_scripts"
QUICK = json.dumps({"limit_s": 1.5, "monitor": {"grace_s": 0.5}})


def only_hang(ranks: Any) -> Entry:
    """The one incident of a run, as it stood when it was time to act."""
    begun = entries(ranks.run_dir, "incident_begin", rule="hang")
    assert len(begun) == 1, begun
    found = entries(ranks.run_dir, "breach", rule="hang")
    # Once when it is first seen, once when it is time to act.
    assert 1 <= len(found) <= 2, found
    assert found[-1].evidence["is_actionable"]
    return found[-1]


def injected_ns(err: str) -> list[int]:
    """When faults were injected on a rank."""
    return [int(number) for number in re.findall(r"time_ns=(\d+)", err)]


@pytest.mark.thorough
def test_pc05_long_phases_are_no_hang_and_the_one_after_them_is(ranks: Any) -> None:
    """
    A first step, a save, a file that rank 0 writes alone and a validation that take over
    twice the limit of a step report nothing; a real hang after all that is reported within
    twice the limit, with its rank.
    """
    limit_s, long_s = 1.2, 3.0

    ended = ranks("phases.py", long_s, env={"SLA_INJECT": "hang:rank=1,step=60"})

    assert not ended.succeeded()
    assert told(ended.out[0], "saved")["time_ns"] - told(ended.out[0], "saves")["time_ns"] > 2.9e9
    assert told(ended.out[0], "wrote")
    hang = only_hang(ranks)
    assert (hang.rank, hang.step, hang.phase) == (1, 60, "forward")
    (started_ns,) = injected_ns(ended.err[1])
    begun = entries(ranks.run_dir, "incident_begin")[0]
    assert begun.time_ns > started_ns
    assert limit_s < (hang.time_ns - started_ns) * 1e-9 < 2 * limit_s + 2
    assert all(code != 0 for code in ended.exit_codes.values())
    (folder,) = run_folders(ranks.run_dir)
    num_told = len(entries(ranks.run_dir, "breach", rule="hang"))
    # The looks at a long phase leave no file each.
    assert len(list(folder.glob("stacks-*"))) <= 2 * num_told


def test_pc05_a_phase_past_its_own_limit_is_named(ranks: Any) -> None:
    """
    A save that passes the limit of saves is reported with its rank and phase.
    """
    ended = ranks("long_save.py")

    assert not ended.succeeded()
    hang = only_hang(ranks)
    assert (hang.rank, hang.phase, hang.limit) == (0, "checkpoint", 2.0)
    assert "checkpoint" in hang.message


@pytest.mark.parametrize("case", ["uneven", "stream"])
def test_pc06_uneven_batches_are_named_and_not_called_slow(ranks: Any, case: str) -> None:
    """
    When rank 0 has left the epoch, the report names it with its five batches and the rank
    that waits in batch six; lengths are compared before the first step where there are any,
    and an endless stream is asked for none.
    """
    ended = ranks("deadlocks.py", case)

    assert not ended.succeeded()
    hang = only_hang(ranks)
    assert (hang.rank, hang.evidence["cause"]) == (0, "uneven_batches")
    assert "after 5 batches" in hang.message
    assert "different numbers of batches" in hang.message
    warned = [text for text in messages(ranks.run_dir, "notice") if "rank 0: 5, rank 1: 8" in text]
    assert len(warned) == (1 if case == "uneven" else 0)


COMPARED = ("seed_contract", "replica_divergence")
"""Rules that tell in every run what they compare."""


def test_pc07_stale_records_of_a_killed_run_alarm_nobody(ranks: Any, tmp_path: Any) -> None:
    """
    A run that was killed in the middle of a save leaves nothing that makes the next one, on
    the same folder and under the same name, look hung.
    """
    folder = {"SLA_RUN_DIR": str(tmp_path / "runs"), "SLA_RUN_ID": "again"}
    with ranks.start("long_save.py", env={**folder, "SLA_INJECT": ""}) as job:
        job.wait_for('"saves"')
        for rank in (0, 1):
            job.signal(rank, signal.SIGKILL)
        job.wait()

    ended = ranks("plain.py", 300, QUICK, env=folder)

    assert ended.succeeded(), ended
    (run,) = run_folders(tmp_path / "runs")
    lines = [line for line in entries(tmp_path / "runs") if line.attempt == 1]
    assert run.name == "again"
    told = [line for line in lines if line.kind != "verdict" and line.rule not in COMPARED]
    assert [line.kind for line in told] == ["start", "end"]


STALLS = {
    "hang:where=forward": "stuck",
    "hang:where=backward": "stuck",
    "hang:where=data": "data_loader",
    "hang_gil:where=forward": "stuck",
    "busy:where=backward": "stuck",
    "stop:where=forward": "process_stopped",
}


@pytest.mark.thorough
def test_pc07_every_stall_has_a_begin_a_cause_and_an_end(ranks: Any) -> None:
    """
    A rank that stalls again and again, each time otherwise, is an incident each time: begun,
    named with the right cause, and ended before the next; no check repeats itself.
    """
    steps = [40, 80, 120, 160, 200, 240]
    faults = ";".join(
        # Time in which a busy rank gets no processor does not count as a stall.
        fault.replace(":", f":rank=1,seconds={4 if 'busy' in fault else 2},step={step},")
        for step, fault in zip(steps, STALLS, strict=True)
    )
    clauses = {"limit_s": 1.2, "hang": {"mode": "observe"}}

    ended = ranks("plain.py", 320, json.dumps(clauses), env={"SLA_INJECT": faults})

    assert ended.succeeded(), ended
    lines = entries(ranks.run_dir, "incident_begin", "incident_end", rule="hang")
    assert [line.kind for line in lines] == ["incident_begin", "incident_end"] * len(STALLS)
    assert {line.rank for line in lines} == {1}
    begun = lines[::2]
    assert [line.evidence["cause"] for line in begun] == list(STALLS.values())
    assert [line.step for line in begun] == steps
    assert len(entries(ranks.run_dir, "breach", rule="hang")) <= 2 * len(STALLS)
    assert all("moves again" in (line.message or "") for line in lines[1::2])
    assert all("_effects.py" in line.evidence["stack"][0] for line in begun[:5])


@pytest.mark.smoke
def test_pc08_a_collective_in_a_hook_of_rank_zero(ranks: Any) -> None:
    """
    The report shows the user's line on rank 0 and the place where rank 1 waits, and says
    that they are in different operations.
    """
    ended = ranks("deadlocks.py", "all_reduce")

    assert all(code != 0 for code in ended.exit_codes.values())
    hang = only_hang(ranks)
    assert (hang.rank, hang.evidence["cause"]) == (0, "different_operations")
    assert "different operations" in hang.message
    assert "lonely_all_reduce" in hang.message
    assert "_broadcast_sigterm_tensor" in hang.message
    assert any("lonely_all_reduce" in frame for frame in hang.evidence["stack"])


def test_pc08_a_collective_that_the_framework_takes_for_its_own(ranks: Any) -> None:
    """
    A broadcast on rank 0 that is answered by another one freezes a step later, somewhere
    else: rank 0 is named all the same, and not the rank that went on.
    """
    ended = ranks("deadlocks.py", "matched")

    assert not ended.succeeded()
    hang = only_hang(ranks)
    assert (hang.rank, hang.evidence["cause"]) == (0, "different_operations")


@pytest.mark.smoke
def test_pc09_a_save_that_only_one_rank_decided_on(ranks: Any) -> None:
    """
    Rank 0 in a checkpoint's barrier and rank 1 in the next step are reported at the limit of
    the step, not at the long one of checkpoints: who entered, who is missing, both places.
    """
    ended = ranks("deadlocks.py", "save")

    assert not ended.succeeded()
    hang = only_hang(ranks)
    assert (hang.rank, hang.phase) == (0, "checkpoint")
    assert "entered by ranks [0], missing [1]" in hang.message
    assert "took different branches" in hang.message
    assert "save_here" in hang.message
    assert hang.evidence["seconds_since_progress"] < 10
    assert hang.evidence["peer_stack"] != hang.evidence["stack"] != []


def test_a_skipped_gradient_sync_is_blamed_on_the_rank_that_skipped(ranks: Any) -> None:
    """
    A rank that leaves out one collective is named, not the one that waits in it.
    """
    faults = {"SLA_INJECT": "skip_collective:rank=1,step=20"}
    ended = ranks("plain.py", 300, QUICK, env=faults)

    assert not ended.succeeded()
    hang = only_hang(ranks)
    assert (hang.rank, hang.evidence["cause"]) == (1, "skipped_collective")


def test_an_exception_on_one_rank_is_published_before_the_others_fail(ranks: Any) -> None:
    """
    The first exception stands in the ledger with its rank, step and phase, before those that
    follow from it, and every rank ends with an error.
    """
    ended = ranks("plain.py", 300, QUICK, env={"SLA_INJECT": "exception:rank=1,step=20"})

    assert all(code != 0 for code in ended.exit_codes.values())
    (first,) = entries(ranks.run_dir, "first_exception")
    assert (first.rank, first.step, first.phase) == (1, 20, "forward")
    assert "InjectedFaultError" in (first.message or "")
    assert entries(ranks.run_dir, "incident_begin", rule="hang") == []


def test_a_rank_that_left_by_an_error_it_caught_is_named(ranks: Any) -> None:
    """
    A script that catches its exception and lives on leaves the others waiting: they are
    reported as waiting for the rank that left, with its error.
    """
    ended = ranks("catches.py", env={"SLA_INJECT": "exception:rank=1,step=20"})

    assert ended.exit_codes[0] != 0
    hang = only_hang(ranks)
    assert (hang.rank, hang.evidence["cause"]) == (1, "rank_left")
    assert "InjectedFaultError" in hang.message


def test_of_four_ranks_the_hanging_one_is_named(ranks: Any) -> None:
    """
    With three ranks waiting for it, the one that hangs is named with its stack, and every
    process of the job is ended with an error.
    """
    faults = {"SLA_INJECT": "hang_gil:rank=2,step=20,where=forward"}
    ended = ranks("plain.py", 300, QUICK, num_ranks=4, env=faults)

    assert all(code != 0 for code in ended.exit_codes.values())
    hang = only_hang(ranks)
    assert (hang.rank, hang.phase, hang.evidence["cause"]) == (2, "forward", "stuck")
    assert "_hang_gil" in hang.evidence["stack"][0]
    assert len(hang.evidence["ranks"]) == 4


def test_under_torchrun_a_hang_ends_the_job_with_an_error(launch: Any, tmp_path: Any) -> None:
    """
    Started by ``torchrun``, a hanging rank is named, and the launcher ends with an error
    instead of waiting for ever.
    """
    ended = launch.torchrun(
        SCRIPTS / "plain.py",
        args=["300", QUICK],
        env={"SLA_RUN_DIR": str(tmp_path / "runs"), "SLA_INJECT": "hang:rank=1,step=20"},
        timeout_s=150,
    )

    assert ended.exit_codes[-1] != 0
    hang = entries(tmp_path / "runs", "breach", rule="hang")[-1]
    assert (hang.rank, hang.phase, hang.evidence["cause"]) == (1, "forward", "stuck")
    assert len(entries(tmp_path / "runs", "end")) == 1
