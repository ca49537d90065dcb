"""Starting a node's monitor: as a process of its own, or as a thread."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Protocol

import msgspec

import slav1
from slav1.monitor.config import MonitorConfig

START_LIMIT_S = 30.0
"""How long a monitor may take to open its sockets, in seconds."""

END_LIMIT_S = 10.0
"""How long its last lines are waited for when training has ended, in seconds."""


class MonitorStartError(RuntimeError):
    """The monitor could not start."""


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
        source = str(Path(slav1.__file__).parents[1])
        paths = [source, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "slav1.monitor"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                # A file named like a standard module in the user's folder must not be imported.
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise MonitorStartError(
                f"The monitor process could not be started: {error}."
            ) from error
        self.address = self._hand_over(config)

    def _hand_over(self, config: MonitorConfig) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(START_LIMIT_S, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(msgspec.json.encode(config))
            self._process.stdin.close()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            timer.cancel()
            timer.join()
            self._process.stdout.close()
        answer = msgspec.json.decode(line, type=dict[str, str]) if line else {}
        if "address" not in answer:
            self._process.kill()
            status = self._process.wait()
            reason = answer.get("error", f"it ended with status {status}; see its output above")
            raise MonitorStartError(f"The monitor process could not start: {reason}")
        return answer["address"]

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
            MonitorStartError: If its sockets can't be opened.
        """
        from slav1.monitor.loop import MonitorLoop  # noqa: PLC0415 - only needed here

        try:
            self._loop = MonitorLoop(config)
        except (OSError, ValueError) as error:
            raise MonitorStartError(f"The monitor thread could not start: {error}") from error
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
    """Starts a monitor.

    Args:
        config: What it is told.
        kind: ``process`` or ``thread``.

    Raises:
        MonitorStartError: If it could not start.
    """
    return MonitorThread(config) if kind == "thread" else MonitorProcess(config)
