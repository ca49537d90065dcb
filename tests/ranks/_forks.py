"""Processes forked from one that has torch and the hosts imported: they start at once."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START_LIMIT_S = 180.0
TICK_S = 0.02


class ForkServer:
    """The test's end of ``_fork_server.py``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("_fork_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._ended: dict[int, int] = {}
        self._reader = threading.Thread(target=self._read, name="fork-server", daemon=True)
        self._reader.start()
        self._answers.get(timeout=START_LIMIT_S)

    def fork(self, order: dict[str, Any]) -> int:
        """Starts one rank; returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        while "rank" not in (answer := self._answers.get(timeout=START_LIMIT_S)):
            self._ended[answer["pid"]] = answer["status"]
        return int(answer["pid"])

    def exit_code(self, pid: int) -> int | None:
        """Exit code of a rank as ``subprocess`` gives it; None while it runs."""
        while not self._answers.empty():
            answer = self._answers.get()
            self._ended[answer["pid"]] = answer["status"]
        return self._ended.get(pid)

    def close(self) -> None:
        """Ends the server, and with it every rank that still runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)
        self._reader.join(timeout=20)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))


class ForkedProcess:
    """A fork that runs a script; has what ``subprocess.Popen`` has, as far as jobs use it."""

    def __init__(
        self,
        server: ForkServer,
        *,
        rank: int,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        self._server = server
        path, *args = words
        order = {"path": path, "args": args, "env": dict(environment), "folder": str(folder)}
        self.pid = server.fork({**order, "rank": rank})

    def poll(self) -> int | None:
        """Exit code; None while it runs."""
        return self._server.exit_code(self.pid)

    def send_signal(self, number: int) -> None:
        """Sends a signal to it, not to its children."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Waits for its end; TimeoutError if it does not come in ``timeout`` seconds."""
        end_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end_s:
                raise TimeoutError(f"Process {self.pid} still runs after {timeout} s.")
            time.sleep(TICK_S)
        return code
