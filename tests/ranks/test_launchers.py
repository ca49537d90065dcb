"""The ways a job can be started."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slav1.ledger import read_ledger
from slav1.recorder.ring import read_ring_file

from ._bad_days import HERE, SRC, messages, start, until

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

CRASHES_ONCE = """
from _trainee import *
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
session = join_run(meeting=f"ticket-{attempt}")
def crash(step):
    if attempt == 0 and step == 30 and os.environ["RANK"] == "1":
        raise RuntimeError("out of luck")
train(session, num_steps=40, before_boundary=crash)
session.leave("finished")
"""


def paths() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(SRC), str(HERE)])}


def the_run(run_dir: Path) -> Path:
    """The folder of the only run in a run directory."""
    (folder,) = filter(Path.is_dir, run_dir.iterdir())
    return folder


def has_ended(run_dir: Path, num_ends: int = 1) -> bool:
    path = the_run(run_dir) / "ledger.jsonl"
    return len(messages(read_ledger(path), "end")) == num_ends


def test_one_process_without_a_launcher(launch, tmp_path):
    """
    A script that nobody launched, without a process group, is a run of one rank.
    """
    script = """
    from _trainee import *
    from slav1.session.rendezvous import job_rendezvous
    session = join(RunSettings(contract=contract(), run_dir=Path(os.environ["TEST_RUN_DIR"]),
                               rank=0, local_rank=0, world_size=1), job_rendezvous())
    train(session, num_steps=20)
    session.leave("finished")
    """
    no_launcher = dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "")
    with start(launch, script, tmp_path / "runs", env={"SLA_RUN_ID": "", **no_launcher}) as job:
        ended = job.wait()

    entries = read_ledger(the_run(tmp_path / "runs") / "ledger.jsonl")
    assert ended.succeeded(), ended
    assert messages(entries, "end") == ["Training ended."]


def test_torchrun_restart_is_the_next_attempt_of_the_same_run(launch, tmp_path):
    """
    When torchrun restarts its ranks after a crash, the run keeps its folder, counts one
    attempt more, starts with empty memories, and leaves the first attempt's rings aside.
    """
    run_dir = tmp_path / "runs"
    env = {**paths(), "TEST_RUN_DIR": str(run_dir)}
    ended = launch.torchrun(CRASHES_ONCE, num_ranks=2, max_restarts=1, env=env)
    until(lambda: has_ended(run_dir, 2), "the last line")

    folder = the_run(run_dir)
    entries = read_ledger(folder / "ledger.jsonl")
    assert ended.exit_codes == {-1: 0}, ended
    assert [entry.attempt for entry in entries if entry.kind == "start"] == [0, 1]
    assert ["out of luck" in text for text in messages(entries, "first_exception")] == [True]
    counts = {
        (entry.attempt, entry.rule): entry.evidence["num_samples"]
        for entry in entries
        if entry.kind == "verdict"
    }
    assert counts[0, "non_finite"] > 0
    assert counts[1, "non_finite"] == 80
    assert counts[1, "loss_variance"] == 40
    assert len(read_ring_file(folder / "attempt-0" / "ring-1.bin")) == 31
    assert len(read_ring_file(folder / "ring-1.bin")) == 40


@pytest.mark.thorough
def test_lightning_starts_its_own_ranks(tmp_path):
    """
    Under Lightning's own launcher, where rank 0 starts the others, all ranks join one run.
    """
    command = [
        *(sys.executable, "-m", "sla_lightning.demo", "--ranks", "2", "--steps", "20"),
        *("--run-dir", str(tmp_path / "runs")),
    ]
    env = {**os.environ, **paths()}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    folder = the_run(tmp_path / "runs")

    entries = read_ledger(folder / "ledger.jsonl")
    assert done.returncode == 0, done.stderr
    assert messages(entries, "start")[0].startswith("Watching 2 rank(s) on 1 node(s)")
    assert messages(entries, "end") == ["Training ended."]
    assert [len(read_ring_file(folder / f"ring-{rank}.bin")) for rank in (0, 1)] == [20, 20]


def mpi_command() -> list[str]:
    """How two ranks are started here; the test is skipped if they can't be."""
    mpirun: Any = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is not installed here")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" not in version.stdout:
        pytest.skip(f"only Open MPI's variables are known to this test: {version.stdout[:40]}")
    return [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2"]


def test_mpirun(tmp_path):
    """
    Under mpirun all ranks join one run and are let go at its end.
    """
    script = tmp_path / "script.py"
    script.write_text(
        "from _trainee import *\n"
        "for ours, theirs in (('RANK', 'RANK'), ('LOCAL_RANK', 'LOCAL_RANK'), "
        "('WORLD_SIZE', 'SIZE')):\n"
        "    os.environ[ours] = os.environ['OMPI_COMM_WORLD_' + theirs]\n"
        "session = join_run()\n"
        "train(session, num_steps=20)\n"
        "session.leave('finished')\n"
    )
    env = {**os.environ, **paths(), "TEST_RUN_DIR": str(tmp_path / "runs"), "SLA_RUN_ID": ""}
    command = [*mpi_command(), sys.executable, str(script)]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )

    entries = read_ledger(the_run(tmp_path / "runs") / "ledger.jsonl")
    assert done.returncode == 0, done.stderr
    assert messages(entries, "end") == ["Training ended."]
