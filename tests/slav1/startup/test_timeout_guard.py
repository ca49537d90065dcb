"""The time-out guard within one process: forms, refusals, nothing left behind."""

import faulthandler
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from slav1.startup import enforce_timeout_guard


def guard_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("slav1")]


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (0, ValueError),
        (-1.0, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (10**9, ValueError),
        ("120", TypeError),
        (None, TypeError),
        (True, TypeError),
        (timedelta(seconds=5), TypeError),
    ],
)
def test_a_time_out_that_is_none_is_refused(timeout, error):
    """
    Only a number of seconds above 0 is a time-out; the text says what came, and no guard
    is armed.
    """
    with pytest.raises(error, match="timeout must be") as caught:
        enforce_timeout_guard("ddp_init", timeout=timeout)

    assert repr(timeout) in str(caught.value)
    assert guard_threads() == []


@pytest.mark.parametrize("phase", ["", "a\nb"])
def test_a_phase_without_a_name_is_refused(phase):
    """
    The phase is a printable name.
    """
    with pytest.raises(ValueError, match="phase must be a printable name"):
        enforce_timeout_guard(phase, timeout=5)


def test_a_decorator_without_brackets_is_refused():
    """
    Forgetting the brackets is explained.
    """
    with pytest.raises(TypeError, match=r"write @enforce_timeout_guard\("):

        @enforce_timeout_guard
        def load():
            pass


def test_a_block_in_time_leaves_nothing():
    """
    After the block there is no thread and no socket of the guard, and what the block
    raised comes through.
    """
    sockets = len(list(Path("/proc/self/fd").iterdir()))
    with enforce_timeout_guard("load", timeout=30) as guard:
        is_armed, threads = guard.is_armed, guard_threads()
    with pytest.raises(KeyError), enforce_timeout_guard("load", timeout=30):
        raise KeyError

    assert is_armed
    assert len(threads) == 2
    assert not guard.is_armed
    assert guard_threads() == []
    assert len(list(Path("/proc/self/fd").iterdir())) == sockets


def test_a_bare_call_can_be_disarmed():
    """
    A guard that is not needed any more is disarmed, as often as one likes.
    """
    guard = enforce_timeout_guard("load", timeout=30)
    is_armed = guard.is_armed
    guard.disarm()
    guard.disarm()

    assert is_armed
    assert not guard.is_armed
    assert guard_threads() == []


def test_a_guard_is_entered_once_at_a_time():
    """
    One guard can be used again, but not within itself.
    """
    guard = enforce_timeout_guard("load", timeout=30)
    with guard, pytest.raises(RuntimeError, match="make a second one"), guard:
        pass
    with guard:
        is_armed = guard.is_armed

    assert is_armed
    assert not guard.is_armed


def test_a_decorated_function_is_bounded_at_each_call():
    """
    The function keeps its name, arguments, result and recursion; between calls nothing
    is armed.
    """

    @enforce_timeout_guard("load", timeout=30)
    def count(down, *, seen):
        """Counts down."""
        seen.append(len(guard_threads()))
        return count(down - 1, seen=seen) if down else "done"

    between = guard_threads()

    assert between == []
    seen = []
    assert count(2, seen=seen) == "done"
    assert seen == [2, 4, 6]
    assert guard_threads() == []
    assert (count.__name__, count.__doc__) == ("count", "Counts down.")


async def asynchronous():
    pass


def generator():
    yield


async def asynchronous_generator():
    yield


@pytest.mark.parametrize("function", [asynchronous, generator, asynchronous_generator, 3])
def test_what_does_not_run_when_called_is_refused(function):
    """
    A coroutine or generator function would not be bounded, so it is refused.
    """
    with pytest.raises(TypeError, match="plain functions only"):
        enforce_timeout_guard("load", timeout=30)(function)

    assert guard_threads() == []


def test_nothing_happens_on_import():
    """
    Importing the guard imports no torch, starts no thread and sets no timer.
    """
    code = (
        "import sys, threading, slav1.startup; "
        "sys.exit('torch' in sys.modules or threading.active_count() > 1)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_timer_in_c_is_given_back(monkeypatch):
    """
    Guards share faulthandler's one timer: the earliest deadline counts, and after the
    last guard it is off.
    """
    calls = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda left_s, **_: calls.append(round(left_s))
    )
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: calls.append("off"))
    with enforce_timeout_guard("outer", timeout=100):
        calls.clear()
        with enforce_timeout_guard("inner", timeout=20):
            pass
        inside = list(calls)

    assert inside[0] == 26
    assert inside[-1] == 106
    assert calls[-1] == "off"


EXPIRED = """
import sys, time
from slav1.startup import enforce_timeout_guard
{code}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "enforce_timeout_guard('load', timeout=0.3); time.sleep(20)",
        "with enforce_timeout_guard('load', timeout=0.3): time.sleep(20)",
        "enforce_timeout_guard('load', timeout=0.3)(time.sleep)(20)",
        "g = enforce_timeout_guard\nwith g('outer', 20), g('load', 0.3): time.sleep(20)",
        "g = enforce_timeout_guard\nwith g('load', 0.3), g('inner', 20): time.sleep(20)",
    ],
)
def test_every_form_ends_the_process(code):
    """
    Bare, as a block, as a decorator and nested, a phase that takes too long ends the
    process with code 70, and only that phase is named.
    """
    begin_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", EXPIRED.format(code=code)],
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
        env={"PYTHONPATH": ":".join(sys.path)},
    )

    assert ended.returncode == 70, ended.stderr
    assert "phase 'load' had not ended after 0.3 s." in ended.stderr
    assert "unknown, because WORLD_SIZE is not set" in ended.stderr
    assert time.monotonic() - begin_s < 15


STUCK = """
import torch.distributed, time
from slav1.startup import enforce_timeout_guard
with enforce_timeout_guard("load", timeout=1):
    time.sleep(30)
"""


@pytest.mark.slow
def test_a_store_that_never_answers_does_not_delay_the_end():
    """
    A port that takes connections and says nothing can't hold a guard up.
    """
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(mute.getsockname()[1])}
        ended = subprocess.run(
            [sys.executable, "-c", STUCK],
            check=False,
            capture_output=True,
            text=True,
            timeout=40,
            env={"PYTHONPATH": ":".join(sys.path), "RANK": "1", "WORLD_SIZE": "2", **place},
        )

    assert ended.returncode == 70, ended.stderr
    assert "could not be reached" in ended.stderr
