"""The kernel's view of a process, and ending one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from slav1.monitor.config import read_config, write_config
from slav1.monitor.ender import Ending
from slav1.monitor.process import WatchedProcess

from ._ranks import config_of


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_zombie_does_not_live(child, has_pidfd, monkeypatch):
    """
    A process lives until it has ended, also while nobody has collected its status; signals
    to it then go nowhere. The same on kernels without process descriptors.
    """
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    watched = WatchedProcess(child.pid)
    assert watched.is_alive() and watched.state() in "RS"
    watched.send(signal.SIGKILL)
    deadline_s = time.monotonic() + 5
    while watched.is_alive() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    watched.send(signal.SIGKILL)

    assert not watched.is_alive()
    assert watched.state() == "X"
    watched.close()


def test_stopped_process_shows_it(child):
    """
    A process that was stopped by a signal is alive, in state T.
    """
    watched = WatchedProcess(child.pid)
    watched.send(signal.SIGSTOP)
    deadline_s = time.monotonic() + 5
    while watched.state() != "T" and time.monotonic() < deadline_s:
        time.sleep(0.01)

    assert watched.state() == "T" and watched.is_alive()
    watched.close()


def test_process_that_never_was_is_gone():
    """
    Watching a process that is gone already finds it gone.
    """
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        watched = WatchedProcess(process.pid)

    assert not watched.is_alive()


def test_monitor_that_is_a_thread_ends_its_own_process_last():
    """
    Where the monitor is a thread of a rank, that rank is killed only when the others are
    gone: with it the monitor is gone too.
    """
    killed: list[int] = []
    alive = {os.getpid(), 111, 222}

    def rank(pid: int) -> Any:
        process = SimpleNamespace(
            pid=pid,
            is_alive=lambda: pid in alive,
            send=lambda number: killed.append(pid) if number == signal.SIGKILL else None,
        )
        return SimpleNamespace(process=process)

    ending = Ending(ranks=[rank(os.getpid()), rank(111), rank(222)], term_at_s=0.0, kill_at_s=1.0)
    ending.advance(2.0)
    alive.difference_update({111, 222})
    assert not ending.advance(3.0)
    alive.clear()

    assert killed == [111, 222, os.getpid()]
    assert ending.advance(4.0)


def test_configuration_arrives_whole_before_the_pipe_is_closed(tmp_path):
    """
    A monitor reads what it is told without waiting for the end of the stream, infinite
    numbers included; a stream that ends too soon is an error.
    """
    read, write = os.pipe()
    config = config_of(tmp_path, contract={"limit": float("inf")})
    with os.fdopen(read, "rb") as source, os.fdopen(write, "wb") as target:
        write_config(target, config)
        assert read_config(source) == config
        target.write(b"\0")
        target.close()
        with pytest.raises(EOFError, match="before it said what to do"):
            read_config(source)
