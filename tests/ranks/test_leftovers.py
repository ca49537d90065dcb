"""Whoever is killed, in whatever order: within seconds nothing of ours is left."""

import signal
import socket
from itertools import permutations
from pathlib import Path
from typing import Any

import psutil
import pytest

from slav1.session.ticket import Ticket

from ._bad_days import (
    UNTIL_GO,
    finish,
    go,
    is_monitor,
    ledger,
    messages,
    start,
    the_monitor,
    until,
)

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

QUICK = {"monitor": {"grace_s": 0.5}}


def abstract_sockets() -> set[str]:
    """Names of all our local sockets on this host."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return {line.split()[-1] for line in lines if "@slav1-" in line}


def ticket_of(job: Any) -> Ticket:
    path = Path(job.folder) / "ticket"
    until(path.exists, "the ticket")
    return Ticket.from_bytes(path.read_bytes())


def is_free(port: int) -> bool:
    """Whether a TCP port of this host can be had."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def assert_nothing_left(job: Any, monitor: psutil.Process, ticket: Ticket) -> None:
    """The fixture of all rank tests looks for processes, threads and shared memory."""
    until(lambda: not is_monitor(monitor), "the end of the monitor", limit_s=8.0)
    # Of a process that was killed the command line is gone first, and what it had open a little
    # later, or a good deal on a machine that is busy.
    name = f"@slav1-{ticket.token[:16]}-0"
    until(lambda: name not in abstract_sockets(), "the end of its local socket", limit_s=8.0)
    until(lambda: is_free(ticket.port), "the end of its port", limit_s=8.0)
    del job


@pytest.mark.parametrize("killed", [(0,), pytest.param((1,), marks=pytest.mark.thorough), (0, 1)])
def test_killed_ranks_leave_nothing(launch, tmp_path, killed):
    """
    When rank 0, rank 1 or both at once are killed, the other is ended with an error, the
    ledger is finished, and neither process, port, socket nor shared memory is left.
    """
    with start(launch, UNTIL_GO, tmp_path, num_ranks=2, contract=QUICK) as job:
        job.wait_for("joined", rank=0)
        job.wait_for("joined", rank=1)
        monitor, ticket = the_monitor(job), ticket_of(job)
        for rank in killed:
            job.signal(rank, signal.SIGKILL)
        ended = job.wait()
        assert_nothing_left(job, monitor, ticket)

    entries = ledger(tmp_path)
    lost = {entry.rank for entry in entries if entry.kind == "breach" and entry.rule == "liveness"}
    assert all(ended.exit_codes.values()), ended
    assert lost == set(killed) or (len(killed) == 2 and lost)
    assert len(messages(entries, "end")) == 1
    assert {path.name for path in (tmp_path / "run").glob("ring-*")} == {"ring-0.bin", "ring-1.bin"}


@pytest.mark.parametrize(
    "order",
    [
        # The monitor first and the monitor last; what lies between them runs in CI.
        pytest.param(order, marks=[] if number in (0, 3) else pytest.mark.thorough)
        for number, order in enumerate(permutations(["monitor", "rank 0", "rank 1"]))
    ],
)
def test_everything_killed_leaves_nothing(launch, tmp_path, order):
    """
    When monitor and ranks are killed one right after the other, in any order, neither
    process, port, socket nor shared memory is left, and the run can be started again.
    """
    with start(launch, UNTIL_GO, tmp_path, num_ranks=2, contract=QUICK) as job:
        job.wait_for("joined", rank=0)
        job.wait_for("joined", rank=1)
        monitor, ticket = the_monitor(job), ticket_of(job)
        processes = {"monitor": monitor}
        processes |= {f"rank {rank}": psutil.Process(job.processes[rank].pid) for rank in (0, 1)}
        for name in order:
            processes[name].kill()
        job.wait()
        assert_nothing_left(job, monitor, ticket)
    with start(launch, finish(5), tmp_path) as again:
        ended = again.wait()

    assert ended.succeeded(), ended
    assert messages(ledger(tmp_path), "end")[-1] == "Training ended."


def test_monitor_whose_starter_never_joins_ends(launch, tmp_path):
    """
    A monitor ends by itself when the process that started it dies before any rank joined.
    """
    script = """
    from _trainee import *
    from slav1.session.open_run import open_run
    settings = RunSettings(contract=contract(), run_dir=Path(os.environ["TEST_RUN_DIR"]),
                           rank=0, local_rank=0, world_size=1)
    ticket, monitor = open_run(settings, os.environ, 0)
    Path("ticket").write_bytes(ticket.to_bytes())
    say("started")
    time.sleep(60)
    """
    with start(launch, script, tmp_path) as job:
        job.wait_for("started")
        monitor, ticket = the_monitor(job), ticket_of(job)
        job.signal(0, signal.SIGKILL)
        job.wait()
        assert_nothing_left(job, monitor, ticket)

    assert messages(ledger(tmp_path), "end") == ["The run ended before every rank had joined."]


def test_forked_child_says_no_goodbye(launch, tmp_path):
    """
    A child that the user's code forks, and that leaves by ``sys.exit``, an exception or the
    normal end of a program, says no goodbye for the rank: the rank stays under watch.
    """
    script = """
    import sys
    from _trainee import *
    session = join_run()
    train(session, num_steps=5)
    for way in range(3):
        child = os.fork()
        if child == 0:
            if way == 0:
                sys.exit(0)
            if way == 1:
                raise ValueError("a mistake of the child")
            session.leave("finished")
            sys.exit(0)
        os.waitpid(child, 0)
        say("watched", session.is_monitor_alive())
    train(session, num_steps=20, first_step=5)
    session.note("still here")
    session.leave("finished")
    """
    with start(launch, script, tmp_path) as job:
        ended = job.wait()

    entries = ledger(tmp_path)
    assert ended.succeeded(), ended
    assert ended.out[0].split() == ["watched", "True"] * 3
    assert messages(entries, "notice") == ["still here"]
    assert messages(entries, "first_exception") == []
    seen = {entry.rule: entry.evidence for entry in entries if entry.kind == "verdict"}
    assert seen["loss_variance"]["num_samples"] == 25


@pytest.mark.parametrize("outlives", ["worker", "rank"])
def test_forked_workers_do_not_confuse_the_clocks(launch, tmp_path, outlives):
    """
    Workers forked from a rank hold all its descriptors. A killed worker is no lost rank; a
    rank that dies is known to be dead at once, though its workers live on.
    """
    script = """
    from _trainee import *
    session = join_run()
    worker = os.fork()
    if worker == 0:
        time.sleep(20)
        os._exit(0)
    say("worker", worker)
    say("stopped at", train_until(session, "go"))
    session.leave("finished")
    """
    with start(launch, script, tmp_path, contract=QUICK) as job:
        job.wait_for("worker")
        worker = psutil.Process(int(job.read(0, "out").split()[1]))
        monitor, ticket = the_monitor(job), ticket_of(job)
        if outlives == "rank":
            worker.kill()
            ended = go(job)
        else:
            job.signal(0, signal.SIGKILL)
            until(lambda: messages(ledger(tmp_path), "breach"), "the loss", limit_s=2.0)
            ended = job.wait()
            assert_nothing_left(job, monitor, ticket)
            assert worker.is_running()
            worker.kill()

    lost = [entry.rank for entry in ledger(tmp_path) if entry.kind == "breach"]
    assert ended.exit_codes[0] == (0 if outlives == "rank" else -signal.SIGKILL)
    assert lost == ([] if outlives == "rank" else [0])


def test_descriptors_of_a_rank_are_closed_at_its_end(launch, tmp_path):
    """
    After a rank has left, its process holds as many descriptors as before it joined, its
    threads are gone, and the next run in the same process works.
    """
    script = """
    import gc, threading
    from _trainee import *
    def open_now():
        gc.collect()
        return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                      if os.path.exists(f"/proc/self/fd/{fd}"))
    before = open_now()
    for number in range(3):
        session = join_run(meeting=f"ticket-{number}")
        train(session, num_steps=3)
        session.leave("finished")
        say(open_now() == before, threading.active_count())
    """
    with start(launch, script, tmp_path) as job:
        ended = job.wait()

    assert ended.succeeded(), ended
    assert ended.out[0].split() == ["True", "1"] * 3
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run", "run-fit2", "run-fit3"]
