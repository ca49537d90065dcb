"""A monitor that dies, stops, or can't start: training goes on, and says so once."""

import signal
import socket
import time

import psutil
import pytest

from ._bad_days import finish, ledger, messages, monitors_of, said, start, the_monitor, until

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

NERVOUS = {"hang": {"limit_s": 1.5, "first_step_limit_s": 1.5, "setup_limit_s": 1.5}}
"""A contract that takes every silence of more than a second and a half for a hang."""

NAN = """
import math
from _trainee import *
session = join_run()
stopped = train(session, num_steps=100, loss_at=lambda step: math.nan if step == 20 else 1.0)
say("stopped at", stopped)
session.leave("finished")
import threading
say("threads", [thread.name for thread in threading.enumerate()])
"""


def test_killed_monitor_is_told_once_and_training_goes_on(launch, tmp_path):
    """
    When the monitor is killed every rank trains to its end, one notice says that nobody
    watches any more, on standard error and in the ledger, and each rank saves its ring.
    """
    with start(launch, finish(num_steps=150), tmp_path, num_ranks=2) as job:
        for rank in (0, 1):
            job.wait_for("joined", rank=rank)
        the_monitor(job).kill()
        ended = job.wait()

    told = [line for rank in (0, 1) for line in said(ended, rank)]
    assert ended.succeeded(), ended
    assert len(told) == 1 and "has ended before its ranks" in told[0], told
    assert messages(ledger(tmp_path), "notice") == [told[0].removeprefix("[sla] ")]
    assert (tmp_path / "run" / "ring-0.bin").exists()
    assert (tmp_path / "run" / "ring-1.bin").exists()


def test_ranks_that_a_killed_monitor_holds_go_on(launch, tmp_path):
    """
    Ranks that wait for a decision of a monitor that is killed go on and train to the end.
    """
    script = """
    from _trainee import *
    from slav1.recorder.layout import Word
    session = join_run()
    def hold(step):
        if step == 5:
            session._block.words[Word.HOLD] = 7
            say("held")
    train(session, num_steps=20, before_boundary=hold)
    session.leave("finished")
    """
    with start(launch, script, tmp_path, num_ranks=2) as job:
        job.wait_for("held", rank=0)
        job.wait_for("held", rank=1)
        assert all(process.poll() is None for process in job.processes.values())
        the_monitor(job).kill()
        ended = job.wait()

    assert ended.succeeded(), ended


def test_rank_that_a_stopped_monitor_holds_gives_up(launch, tmp_path):
    """
    A rank that waits for a decision of a monitor that somebody has stopped goes on when
    no sign of life has come for long.
    """
    script = """
    from _trainee import *
    from slav1.recorder.layout import Word
    import slav1.session.vital_signs as module
    module._BEAT_LIMIT_NS = int(0.5e9)
    session = join_run()
    def hold(step):
        if step == 5:
            session._block.words[Word.HOLD] = 7
            say("held")
    train(session, num_steps=20, before_boundary=hold)
    session.leave("finished")
    """
    with start(launch, script, tmp_path) as job:
        job.wait_for("held")
        monitor = the_monitor(job)
        monitor.suspend()
        until(lambda: job.processes[0].poll() is not None, "the end of the rank")
        monitor.resume()
        ended = job.wait()

    assert ended.succeeded(), ended


@pytest.mark.thorough
def test_paused_monitor_raises_no_alarm(launch, tmp_path):
    """
    A monitor that was stopped for longer than a hang limit, and goes on, finds nothing.
    """
    with start(launch, finish(num_steps=180), tmp_path, contract=NERVOUS) as job:
        job.wait_for("joined")
        monitor = the_monitor(job)
        monitor.suspend()
        time.sleep(2.5)
        monitor.resume()
        ended = job.wait()

    assert ended.succeeded(), ended
    assert messages(ledger(tmp_path), "breach") == []
    assert messages(ledger(tmp_path), "end") == ["Training ended."]


@pytest.mark.parametrize("first", [pytest.param("monitor", marks=pytest.mark.thorough), "ranks"])
def test_paused_job_raises_no_alarm(launch, tmp_path, first):
    """
    A whole job that was stopped for longer than a hang limit, and goes on, ranks or
    monitor first, finds nothing.
    """
    with start(launch, finish(num_steps=60), tmp_path, num_ranks=2, contract=NERVOUS) as job:
        job.wait_for("joined", rank=0)
        job.wait_for("joined", rank=1)
        monitor = the_monitor(job)
        everybody = [monitor, *(psutil.Process(p.pid) for p in job.processes.values())]
        for process in everybody:
            process.suspend()
        time.sleep(2.5)
        for process in everybody if first == "monitor" else reversed(everybody):
            process.resume()
            time.sleep(0.2)
        ended = job.wait()

    assert ended.succeeded(), ended
    assert messages(ledger(tmp_path), "breach") == []


def test_stopped_ranks_are_no_hang_if_all_are(launch, tmp_path):
    """
    When somebody stops all ranks with Ctrl-Z for longer than the hang limit, the contract
    ends nobody.
    """
    with start(launch, finish(num_steps=60), tmp_path, num_ranks=2, contract=NERVOUS) as job:
        job.wait_for("joined", rank=0)
        job.wait_for("joined", rank=1)
        for rank in (0, 1):
            job.signal(rank, signal.SIGSTOP)
        time.sleep(2.5)
        for rank in (0, 1):
            job.signal(rank, signal.SIGCONT)
        ended = job.wait()

    assert ended.succeeded(), ended
    assert messages(ledger(tmp_path), "decision") == []


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("ends at once", marks=pytest.mark.thorough),
        pytest.param("no program", marks=pytest.mark.thorough),
        "says nonsense",
    ],
)
def test_monitor_that_cannot_start_becomes_a_thread(launch, tmp_path, way):
    """
    Where no monitor process can be started, one notice says so, a thread watches instead,
    and the ledger is complete.
    """
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import os, sys\nprint('welcome to this cluster')\n"
        "if 'slav1.monitor' in sys.orig_argv and os.environ.get('TEST_BREAKS'): os._exit(3)\n"
    )
    script = "import sys, os\n"
    script += "sys.executable = '/nowhere/python'\n" if way == "no program" else ""
    script += f"os.environ['PYTHONPATH'] = '{broken}:' + os.environ['PYTHONPATH']\n"
    script += "os.environ['TEST_BREAKS'] = '1'\n" if way == "ends at once" else ""
    with start(launch, script + finish(20), tmp_path) as job:
        ended = job.wait()

    told = said(ended)
    assert ended.succeeded(), ended
    assert messages(ledger(tmp_path), "end") == ["Training ended."]
    if way == "says nonsense":
        assert told == []
    else:
        assert len(told) == 1 and "monitor.kind" in told[0], told


def test_thread_finds_what_the_process_finds(launch, tmp_path):
    """
    With ``monitor.kind: thread`` a loss that is not a number stops all ranks at the same
    step as well, and no thread is left.
    """
    kept = {"monitor": {"kind": "thread"}}
    with start(launch, NAN, tmp_path, num_ranks=2, contract=kept) as job:
        ended = job.wait()

    assert ended.succeeded(), ended
    stopped = [ended.out[rank].splitlines()[-2] for rank in (0, 1)]
    assert stopped[0] == stopped[1] != "stopped at None"
    assert [ended.out[rank].splitlines()[-1] for rank in (0, 1)] == ["threads ['MainThread']"] * 2
    assert "non_finite" in {entry.rule for entry in ledger(tmp_path) if entry.kind == "breach"}
    assert monitors_of(job) == []


def test_run_that_nobody_watches_says_so(launch, tmp_path):
    """
    With ``monitor.kind: off`` nothing is started and nothing stopped; the ring is saved,
    and ledger and verdict say that nobody watched.
    """
    with start(launch, NAN, tmp_path, num_ranks=2, contract={"monitor": {"kind": "off"}}) as job:
        job.wait_for("stopped", rank=0)
        ended = job.wait()

    entries = ledger(tmp_path)
    assert ended.succeeded(), ended
    assert "stopped at None" in ended.out[0] and "stopped at None" in ended.out[1]
    assert (tmp_path / "run" / "ring-1.bin").exists()
    assert (tmp_path / "run" / "contract.yaml").exists()
    assert "monitor.kind is off" in messages(entries, "start")[0]
    assert {entry.evidence["num_samples"] for entry in entries if entry.kind == "verdict"} == {0}


def test_taken_port_is_a_clear_error_on_all_ranks(launch, tmp_path):
    """
    When the port of the contract is taken, every rank fails before its first step with a
    sentence that names the setting and what to do.
    """
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        kept = {"monitor": {"port": port}}
        with start(launch, finish(), tmp_path, num_ranks=2, contract=kept) as job:
            ended = job.wait()

    for rank in (0, 1):
        assert ended.exit_codes[rank] == 1
        assert f"monitor.port {port}" in ended.err[rank]
        assert "to a free port, or to 0" in ended.err[rank]
        assert "joined" not in ended.out[rank]


def test_rank_without_rank_0_gives_up_in_time(launch, tmp_path):
    """
    A rank that waits for a rank 0 that never comes ends with a clear error.
    """
    script = "from _trainee import *\njoin_run(join_limit_s=0.5)"
    with start(launch, script, tmp_path, num_ranks=2, absent=(0,)) as job:
        ended = job.wait()

    assert ended.exit_codes[1] == 1
    assert "Rank 0 has not handed out" in ended.err[1]


def test_rank_that_comes_after_the_end_is_told(launch, tmp_path):
    """
    A rank that comes when all others have left, and the monitor with them, ends with a
    clear error and does not wait for long.
    """
    script = """
    import pathlib, time
    from _trainee import *
    if os.environ["RANK"] == "1":
        while not pathlib.Path("gone").exists():
            time.sleep(0.02)
    session = join_run()
    session.leave("finished")
    pathlib.Path("gone").touch()
    """
    with start(launch, script, tmp_path, num_ranks=2) as job:
        ended = job.wait()

    assert ended.exit_codes == {0: 0, 1: 1}
    assert "it ends when all ranks that had joined have left" in ended.err[1]
    assert messages(ledger(tmp_path), "end") == ["The run ended before every rank had joined."]
