"""The kernel's view of one process, safe against a reused process id."""

import contextlib
import os
import select
import signal
from pathlib import Path

import psutil


class WatchedProcess:
    """Whether a process lives, in which state it is, and a way to signal it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd: int | None = None
        """Readable once the process has ended; None where the kernel has none."""
        self._gone = False
        with contextlib.suppress(AttributeError, OSError):
            self.pidfd = os.pidfd_open(pid)
        self._started = self._start_time()

    def is_alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        if not self._gone:
            self._gone = not self._looks_alive()
        return not self._gone

    def state(self) -> str:
        """The kernel's letter for its main thread; X if gone, ? if unknown."""
        if not self.is_alive():
            return "X"
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return "?"
        # The name stands in parentheses and may hold spaces and parentheses itself.
        letter = chr(stat[stat.rindex(b")") + 2])
        return "T" if letter == "t" else letter

    def queued_s(self) -> float:
        """Seconds its main thread has waited for a processor; 0 where the kernel won't say."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_bytes().split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return 0.0

    def send(self, number: int) -> None:
        """Sends signal ``number`` to exactly this process; does nothing if it is gone."""
        if not self.is_alive():
            return
        with contextlib.suppress(ProcessLookupError):
            if self.pidfd is not None:
                signal.pidfd_send_signal(self.pidfd, number)
            else:
                os.kill(self.pid, number)

    def close(self) -> None:
        """Closes the descriptor."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def _looks_alive(self) -> bool:
        if self.pidfd is not None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            return not poll.poll(0)
        return self._started is not None and self._start_time() == self._started

    def _start_time(self) -> float | None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                return process.create_time()
        return None
