"""What a fault does to its process, seen from outside of it."""

import signal
import time
from collections import Counter

import psutil
import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

# A thread notes the time all along; the fault acts in the main thread.
SCRIPT = """
import faulthandler, os, signal, sys, threading, time
from slav1.testing import planned_faults

faulthandler.register(signal.SIGUSR1, all_threads=True)
noted_s = []

def note():
    while True:
        noted_s.append(time.monotonic())
        sys.stdout.write("tick\\n")
        time.sleep(0.01)

threading.Thread(target=note, daemon=True).start()
faults = planned_faults(0, 1)
for step in range(3):
    for where in ("data", "forward", "backward", "optimizer", "step_end"):
        print("entering", where, step)
        begin_s = time.monotonic()
        faults.at(where, step)
        took_s = time.monotonic() - begin_s
        if took_s > 0.1:
            ticks = sum(begin_s < noted < begin_s + took_s for noted in noted_s)
            # In one piece: the thread writes at the same time.
            sys.stdout.write(f"held {where} {step} {ticks}\\n")
print("end")
"""


def start(launch, fault):
    return launch.start(SCRIPT, num_ranks=1, env={"SLA_INJECT": fault}, timeout_s=30)


def held(ended):
    """Where and when the script was held, and what its thread did meanwhile."""
    lines = [line.split() for line in ended.out[0].splitlines() if line.startswith("held")]
    return [(where, int(step), int(ticks)) for _, where, step, ticks in lines]


def usual_state(pid):
    """The state the process is in at most of a few moments."""
    process, states = psutil.Process(pid), Counter()
    for _ in range(15):
        states[process.status()] += 1
        time.sleep(0.01)
    return states.most_common(1)[0][0]


@pytest.mark.parametrize("kind", ["sleep", "hang", "hang_gil", "busy", "stop"])
def test_what_lasts_a_while_ends_again(launch, kind):
    """
    With seconds= the rank is held at its point and step for that long and then goes on.
    A thread works on beside a sleep, hang or busy loop; not while the GIL is held or
    the process is stopped.
    """
    with start(launch, f"{kind}:step=1,where=optimizer,seconds=0.6") as job:
        ended = job.wait()

    ((where, step, ticks),) = held(ended)
    assert ended.succeeded(), str(ended)
    assert (where, step) == ("optimizer", 1)
    assert (ticks > 5) == (kind not in ("hang_gil", "stop")), ticks


@pytest.mark.parametrize(
    ("kind", "states", "has_thread"),
    [("hang", "S", True), ("busy", "RS", True), ("hang_gil", "S", False), ("stop", "T", False)],
)
def test_what_lasts_for_ever_shows_in_the_process(launch, kind, states, has_thread):
    """
    Without seconds= the rank stays where it is; its process state, and whether other
    threads go on, tell the kinds apart.
    """
    with start(launch, f"{kind}:step=1,where=backward") as job:
        job.wait_for("entering backward 1")
        time.sleep(0.3)
        before = job.read(0, "out").count("tick")
        time.sleep(0.5)
        after = job.read(0, "out").count("tick")
        state = usual_state(job.processes[0].pid)

    letter = {"sleeping": "S", "running": "R", "stopped": "T"}[state]
    assert letter in states
    assert (after > before) == has_thread
    assert "entering optimizer 1" not in job.read(0, "out")


def test_a_held_gil_survives_signals(launch):
    """
    A signal handled in C, as faulthandler's is, works while the GIL is held and does
    not end the hang.
    """
    with start(launch, "hang_gil:step=1") as job:
        job.wait_for("entering forward 1")
        time.sleep(0.3)
        job.signal(0, signal.SIGUSR1)
        job.wait_for("_hang_gil")
        time.sleep(0.3)
        is_running = job.processes[0].poll() is None
        out = job.read(0, "out")

    assert is_running
    assert "entering backward 1" not in out


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("kill:step=1", -signal.SIGKILL, ""),
        ("exit:step=1,code=7", 7, ""),
        (
            "exception:step=1",
            1,
            "InjectedFaultError: Fault injection raised this on rank 0, step 1",
        ),
    ],
)
def test_what_ends_the_process(launch, fault, code, said):
    """
    The process ends at its step the way it was told to, and said so before.
    """
    with start(launch, fault) as job:
        ended = job.wait()

    assert ended.exit_codes == {0: code}
    assert said in ended.err[0]
    assert f"Rank 0, step 1: injecting {fault.split(':')[0]}" in ended.err[0]
    assert "entering forward 1\n" in ended.out[0]
    assert "entering backward 1\n" not in ended.out[0]
