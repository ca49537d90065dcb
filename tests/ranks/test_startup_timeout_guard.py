"""The time-out guard over real ranks that wait for each other."""

import re

import pytest

pytestmark = [
    *(pytest.mark.ranks, pytest.mark.slow),
    pytest.mark.usefixtures("fork_server"),
]

EXIT_CODE = 70
TIMEOUT_S = 3.0
SLACK_S = 5.0  # one last look at the store, the time for others to read it, a busy machine

SCRIPT = """
import glob, os, sys, threading, time
import torch.distributed as dist
from slav1.startup import _presence, enforce_timeout_guard

print("ready")
# Importing takes long and unequally long: begin together.
open(f"ready-{os.getpid()}", "w").close()
while len(glob.glob("ready-*")) < int(os.environ.get("STARTED", os.environ["WORLD_SIZE"])):
    time.sleep(0.01)
if os.environ["RANK"] == os.environ.get("ABSENT"):
    time.sleep(60)
if "APART" in os.environ:
    # As on different machines: ranks know of each other through the store alone.
    _presence.Presence.seen = lambda self, ranks: frozenset()
    _presence.Presence.tell = lambda self, ranks, text: None
if os.environ["RANK"] == os.environ.get("LATE"):
    time.sleep(1.5)
guard = enforce_timeout_guard("ddp_init", timeout=float(os.environ["TIMEOUT_S"]))
if os.environ["RANK"] == os.environ.get("DIES"):
    time.sleep(1.0)
    os._exit(3)
dist.init_process_group("gloo")
print("initialised")
deadline_s = time.monotonic() + 5
while guard.is_armed and time.monotonic() < deadline_s:
    time.sleep(0.01)
guard.disarm()
names = [t.name for t in threading.enumerate() if t.name.startswith("slav1")]
print("left:", names, guard.is_armed)
dist.destroy_process_group()
"""


def lists(ended, rank):
    """What a rank printed about who is here: (arrived, not arrived)."""
    return tuple(
        re.search(rf"^  {name}: +(.*)$", ended.err[rank], re.MULTILINE)[1]
        for name in ("arrived", "not arrived")
    )


def test_a_start_up_in_time_goes_on(launch):
    """
    When all ranks come up the guard ends by itself and leaves no thread behind.
    """
    ended = launch(SCRIPT, num_ranks=2, env={"TIMEOUT_S": "50"})

    assert ended.succeeded(), str(ended)
    assert "left: [] False" in ended.out[0]
    assert "left: [] False" in ended.out[1]


@pytest.mark.parametrize(
    ("num_ranks", "absent", "arrived"),
    [
        pytest.param(2, 1, "0", marks=pytest.mark.thorough),
        pytest.param(3, 2, "0-1", marks=pytest.mark.thorough),
        pytest.param(4, 0, "1-3", marks=pytest.mark.thorough),
        (4, 2, "0-1, 3"),
    ],
)
def test_a_rank_that_never_comes_is_named(launch, num_ranks, absent, arrived):
    """
    One rank sleeps before init: all others end with the guard's exit code soon after the
    time-out and print the same lists, also when the missing rank is the store's host.
    """
    with launch.start(
        SCRIPT,
        num_ranks=num_ranks,
        env={"TIMEOUT_S": str(TIMEOUT_S), "ABSENT": str(absent)},
    ) as job:
        waiting = [rank for rank in range(num_ranks) if rank != absent]
        for rank in waiting:
            job.wait_for("This process ends with exit code", rank=rank)
        job.signal(absent, 9)
        ended = job.wait()

    for rank in waiting:
        assert ended.exit_codes[rank] == EXIT_CODE, str(ended)
        assert lists(ended, rank) == (arrived, str(absent)), str(ended)
        assert "phase 'ddp_init' had not ended after 3 s" in ended.err[rank]
        assert 'dist.init_process_group("gloo")' in ended.err[rank]
        assert f"Read the logs of rank {absent}:" in ended.err[rank]
        assert ("could not be reached" in ended.err[rank]) == (absent == 0)


def test_the_end_comes_soon_after_the_time_out(launch):
    """
    A rank that waits alone ends within seconds of its time-out, and not before it.
    """
    with launch.start(
        SCRIPT, absent=(0,), env={"TIMEOUT_S": str(TIMEOUT_S), "STARTED": "1"}
    ) as job:
        job.wait_for("ready", rank=1)
        at_time_out = job.seconds() + TIMEOUT_S
        ended = job.wait()

    assert ended.exit_codes == {1: EXIT_CODE}
    assert at_time_out - 2 < ended.seconds_s[1] < at_time_out + SLACK_S


@pytest.mark.thorough
def test_ranks_of_different_machines_end_together(launch):
    """
    Where only the store connects the ranks, the one whose time runs out first tells the
    others before it goes, though it may take the store with it.
    """
    env = {"TIMEOUT_S": "8", "ABSENT": "2", "LATE": "1", "APART": "1", "LOCAL_WORLD_SIZE": "1"}
    with launch.start(SCRIPT, num_ranks=3, env=env) as job:
        for rank in (0, 1):
            job.processes[rank].wait(timeout=50)
        job.signal(2, 9)
        ended = job.wait()

    assert lists(ended, 0) == lists(ended, 1) == ("0-1", "2"), str(ended)
    assert "had not ended after 8 s.\n" in ended.err[0]
    assert "had not ended after 8 s on rank 0.\n" in ended.err[1]


@pytest.mark.thorough
def test_under_torchrun_all_print_before_the_launcher_ends_them(launch):
    """
    Under torchrun the first exit makes the launcher end the other ranks; each has
    printed the same lists by then, and the launcher fails.
    """
    ended = launch.torchrun(SCRIPT, num_ranks=3, env={"TIMEOUT_S": str(TIMEOUT_S), "ABSENT": "0"})

    assert ended.exit_codes[-1] != 0
    assert lists(ended, 1) == lists(ended, 2) == ("1-2", "0"), str(ended)
    assert "reached" in ended.err[1]
    assert f"exitcode  : {EXIT_CODE}" in ended.err[-1]


def test_a_rank_that_came_and_died_is_told_apart(launch):
    """
    A rank that arrived and then died is listed as arrived but no longer here.
    """
    ended = launch(SCRIPT, num_ranks=2, env={"TIMEOUT_S": str(TIMEOUT_S), "DIES": "1"})

    assert ended.exit_codes == {0: EXIT_CODE, 1: 3}
    assert lists(ended, 0) == ("0-1 (no longer here: 1)", "none"), str(ended)


def test_two_processes_with_one_rank_are_told_so(launch):
    """
    Two processes that were started with the same rank find each other.
    """
    ended = launch(
        SCRIPT,
        num_ranks=3,
        absent=(0,),
        env_of={2: {"RANK": "1"}},
        env={"TIMEOUT_S": "3", "STARTED": "2"},
    )

    assert ended.exit_codes == {1: EXIT_CODE, 2: EXIT_CODE}, str(ended)
    assert "Another process of this machine is rank 1 too" in ended.err[1] + ended.err[2]


GIL_SCRIPT = """
import time
from slav1.startup import enforce_timeout_guard
from slav1.testing import inject, planned_faults

inject("hang_gil", step=0)
with enforce_timeout_guard("device_init", timeout=1):
    print("in", flush=True)
    planned_faults(0, 1).at("forward", 0)
"""


def test_a_held_gil_is_ended_from_c(launch):
    """
    When a C call holds the GIL no Python thread can act; the process still ends with a
    non-zero code, some seconds later, and shows its stack.
    """
    ended = launch(GIL_SCRIPT, num_ranks=1, timeout_s=30)

    assert ended.exit_codes == {0: 1}
    assert "Timeout" in ended.err[0]
    assert "_hang_gil" in ended.err[0]


THREAD_SCRIPT = """
import signal, threading, time, torch.distributed as dist
from slav1.startup import enforce_timeout_guard

def train():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
    with enforce_timeout_guard("outer", timeout=60), enforce_timeout_guard("inner", timeout=60):
        dist.init_process_group("gloo")
    dist.destroy_process_group()
    enforce_timeout_guard("ddp_init", timeout=60)
    dist.init_process_group("gloo")
    dist.destroy_process_group()
    assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM))
    with enforce_timeout_guard("ddp_init", timeout=1.5):
        print("second use", flush=True)
        stuck_in_a_thread()

def stuck_in_a_thread():
    time.sleep(60)

threading.Thread(target=train).start()
"""


def test_outside_the_main_thread_and_more_than_once(launch):
    """
    Guards nest, can be used again, and work in a thread: no signal is used, and the
    stack shown is that of the thread that set the guard.
    """
    ended = launch(THREAD_SCRIPT, num_ranks=1, timeout_s=40)

    assert "second use" in ended.out[0], str(ended)
    assert ended.exit_codes == {0: EXIT_CODE}
    assert "stuck_in_a_thread()" in ended.err[0]


BARRIER_SCRIPT = """
import os, time, torch.distributed as dist
from slav1.startup import enforce_timeout_guard

enforce_timeout_guard("ddp_init", timeout=4)
if os.environ["RANK"] == "1":
    # Comes to the process group, but never to the barrier that ends init_process_group.
    dist.distributed_c10d._store_based_barrier = lambda *args: time.sleep(60)
dist.init_process_group("gloo")
"""


def test_what_follows_inside_init_is_bounded_too(launch):
    """
    Where init_process_group ends with a barrier, the guard lasts until that is through.
    """
    ended = launch(BARRIER_SCRIPT, env={"TORCH_DIST_INIT_BARRIER": "1"}, timeout_s=40)

    assert ended.exit_codes == {0: EXIT_CODE, 1: EXIT_CODE}
    assert lists(ended, 0) == ("0-1", "none")
    assert "All ranks are here" in ended.err[0]
