"""Starting a node's monitor: as a process of its own, or as a thread."""

import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Protocol

import msgspec

import slav1
from slav1.coordinator.say import say
from slav1.monitor.config import MonitorConfig, write_config

START_LIMIT_S = 30.0
"""How long a monitor may take to open its sockets, in seconds."""

KILL_LIMIT_S = 5.0
"""How long the end of a process that was killed is waited for, in seconds."""

END_LIMIT_S = 10.0
"""How long its last lines are waited for when training has ended, in seconds."""


class MonitorStartError(RuntimeError):
    """The monitor could not start."""


class MonitorRefusedError(MonitorStartError):
    """The monitor started and found that it can't do its work: another way of starting
    it would not help."""


class RunningMonitor(Protocol):
    """A monitor that this process started."""

    address: str
    """ZeroMQ address of the coordinator."""

    def wait(self, limit_s: float) -> bool:
        """Waits until it has written its last line; returns whether it did in time."""
        ...


class MonitorProcess:
    """``python -m slav1.monitor``, in a session of its own so that Ctrl-C spares it."""

    def __init__(self, config: MonitorConfig) -> None:
        """Starts it and waits until its sockets are open.

        Raises:
            MonitorStartError: If it could not start; the text says why.
        """
        answer_fd, their_fd = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable or "", "-m", "slav1.monitor", str(their_fd)],
                stdin=subprocess.PIPE,
                # What the user's own start-up files print must not reach anybody's output.
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": _python_path()},
                # A file named like a standard module in the user's folder must not be imported.
                cwd="/",
                pass_fds=[their_fd],
                start_new_session=True,
            )
        except OSError as error:
            os.close(answer_fd)
            raise MonitorStartError(
                f"The monitor process could not be started: {error}."
            ) from error
        finally:
            os.close(their_fd)
        try:
            self.address = self._hand_over(config, answer_fd)
        finally:
            os.close(answer_fd)

    def _hand_over(self, config: MonitorConfig, answer_fd: int) -> str:
        assert self._process.stdin is not None, "it was started with a pipe"
        try:
            write_config(self._process.stdin, config)
            self._process.stdin.close()
            raw = _read_within(answer_fd, START_LIMIT_S)
        except BrokenPipeError:
            raw = b""
        answer = msgspec.json.decode(raw, type=dict[str, str]) if raw else {}
        if "address" in answer:
            return answer["address"]
        self._process.kill()
        how = self._end()
        if "error" in answer:
            raise MonitorRefusedError(f"The monitor could not start: {answer['error']}")
        raise MonitorStartError(
            f"The monitor process ended {how}, or said nothing for {START_LIMIT_S:g} s. If "
            "something is wrong with Python there, its output above says what."
        )

    def _end(self) -> str:
        """Waits for the end of a process that was killed; says how it ended."""
        try:
            status = self._process.wait(KILL_LIMIT_S)
        except subprocess.TimeoutExpired:
            # Stuck in the kernel, as on a disk that does not answer: nobody can end it.
            return f"not even within {KILL_LIMIT_S:g} s of SIGKILL"
        return f"with status {status}" if status >= 0 else f"by signal {-status}"

    def wait(self, limit_s: float) -> bool:
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            # It goes on waiting for other ranks and ends by itself; it is no child to
            # worry about, since nobody but us could ever collect its exit status.
            return False
        return True


class MonitorThread:
    """The same loop in a thread of this process. Weaker: it stands still whenever this
    process holds the interpreter lock, and dies with it."""

    def __init__(self, config: MonitorConfig) -> None:
        """Starts it.

        Raises:
            MonitorRefusedError: If its sockets can't be opened.
        """
        from slav1.monitor.loop import MonitorLoop

        try:
            self._loop = MonitorLoop(config)
        except (OSError, ValueError) as error:
            raise MonitorRefusedError(f"The monitor could not start: {error}") from error
        self.address = self._loop.address
        self._thread = threading.Thread(target=self._run, name="slav1-monitor", daemon=True)
        self._thread.start()

    def wait(self, limit_s: float) -> bool:
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._loop.run()
        finally:
            self._loop.close()


def start_monitor(config: MonitorConfig, kind: str) -> RunningMonitor:
    """Starts a monitor; as a thread if no process can be started.

    Args:
        config: What it is told.
        kind: ``process`` or ``thread``.

    Raises:
        MonitorStartError: If it could not start.
    """
    if kind == "thread":
        return MonitorThread(config)
    try:
        return MonitorProcess(config)
    except MonitorRefusedError:
        raise
    except MonitorStartError as error:
        say(f"{error} It runs as a thread of this rank instead, which sees less: monitor.kind.")
        return MonitorThread(config)


def _python_path() -> str:
    """Where the monitor finds this very package first, whatever its working folder."""
    source = str(Path(slav1.__file__).resolve().parents[1])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([source, *(str(Path(path).absolute()) for path in given if path)])


def _read_within(fd: int, limit_s: float) -> bytes:
    """Reads one short message; nothing if it does not come in time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return os.read(fd, 1 << 16) if poll.poll(limit_s * 1000) else b""
