"""Starting the demo's job and ending all of it."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from slav1.cli._demo_interrupts import noted_interrupts
from slav1.cli._demo_job import RUN_ID, Job, environment_of_job

# A parent, its child, and a grandchild in a session of its own; none heeds SIGTERM.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
depth = int(sys.argv[1])
if depth:
    subprocess.Popen(
        [sys.executable, "-c", sys.argv[2], str(depth - 1), sys.argv[2]],
        start_new_session=depth == 1,
    )
print("up", flush=True)
time.sleep(60)
"""


def family(tmp_path, depth=2):
    environment = environment_of_job(os.environ, run_id=f"test-{os.getpid()}", inject=None)
    command = [sys.executable, "-c", FAMILY, str(depth), FAMILY]
    return Job(command, environment, tmp_path / "output.log")


def wait_for(condition, limit_s=20.0):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.ranks
@pytest.mark.slow
def test_ending_a_job_leaves_nothing_of_it(tmp_path):
    """
    Children, and grandchildren that moved to another session, are ended with the job,
    also when none of them heeds SIGTERM.
    """
    job = family(tmp_path)
    wait_for(lambda: (tmp_path / "output.log").read_text().count("up") == 3)
    processes = job.processes()

    job.end(grace_s=0.1)

    assert len(processes) == 3
    assert job.processes() == []
    assert job.exit_status() == -signal.SIGKILL


@pytest.mark.ranks
@pytest.mark.slow
def test_orphans_are_still_seen(tmp_path):
    """
    When rank 0 alone dies, the others still count as processes of the job.
    """
    job = family(tmp_path)
    wait_for(lambda: (tmp_path / "output.log").read_text().count("up") == 3)

    os.kill(job.pid, signal.SIGKILL)
    wait_for(lambda: job.exit_status() is not None)
    left = job.processes()
    job.end(grace_s=0.1)

    assert len(left) == 2
    assert job.processes() == []


def test_a_job_knows_nothing_of_the_launcher_or_cluster_around_it():
    """
    Variables that would make the job part of another one, or that change the contract,
    are not passed on; all others are.
    """
    around = {"PATH": "/bin", "RANK": "3", "MASTER_PORT": "1", "SLA_INJECT": "x", "SLA_SEED": "1"}

    environment = environment_of_job(around, run_id="r", inject=None)

    assert environment["PATH"] == "/bin"
    assert environment[RUN_ID] == "r"
    assert not set(environment) & {"RANK", "MASTER_PORT", "SLA_INJECT", "SLA_SEED"}


def test_the_fault_reaches_the_job_by_its_environment():
    """
    The planned fault, and not one that was set around the demo, is in SLA_INJECT.
    """
    environment = environment_of_job({"SLA_INJECT": "kill:step=1"}, run_id="r", inject="nan:step=2")

    assert environment["SLA_INJECT"] == "nan:step=2"


def test_interrupts_are_noted_and_the_handlers_put_back():
    """
    A signal is remembered instead of acting, the first one wins, and afterwards the
    handlers are those from before.
    """
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    with noted_interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)

    assert interrupts.number == signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.ranks
@pytest.mark.slow
def test_killed_demo_takes_its_job_with_it(tmp_path):
    """
    A demo that is killed with SIGKILL can end nothing any more; the kernel then asks its
    job to end.
    """
    starter = (
        "import os, sys, time; from pathlib import Path; from slav1.cli._demo_job import *\n"
        "words = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "environment = environment_of_job(os.environ, run_id='test-orphan', inject=None)\n"
        f"job = Job(words, environment, Path({str(tmp_path / 'output.log')!r}))\n"
        "print(job.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE) as demo:
        job = psutil.Process(int(demo.stdout.readline()))
        demo.kill()

    # Where nobody adopts orphans, a zombie is all that remains.
    wait_for(lambda: not job.is_running() or job.status() == psutil.STATUS_ZOMBIE)
    assert demo.returncode == -signal.SIGKILL
