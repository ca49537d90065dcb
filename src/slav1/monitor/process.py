"""The kernel's view of one process, safe against a reused process id."""

import contextlib
import os
import select
import signal


class WatchedProcess:
    """Whether a process lives, in which state it is, and a way to signal it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd: int | None = None
        """Readable once the process has ended; None where the kernel has none."""
        self._gone = False
        with contextlib.suppress(AttributeError, OSError):
            self.pidfd = os.pidfd_open(pid)
        # Where the kernel gives no descriptor, a process is known by its time of birth.
        self._started = None if self.pidfd is not None else self._start_time()

    def is_alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        if not self._gone:
            self._gone = not self._looks_alive()
        return not self._gone

    def is_known_gone(self) -> bool:
        """Whether it was seen to have ended; only asks where the kernel tells of no end."""
        return self._gone or (self.pidfd is None and not self.is_alive())

    def state(self) -> str:
        """The kernel's letter for its main thread; X if gone, ? if unknown."""
        if not self.is_alive():
            return "X"
        try:
            stat = _read(f"/proc/{self.pid}/stat")
        except OSError:
            return "?"
        # The name stands in parentheses and may hold spaces and parentheses itself.
        letter = chr(stat[stat.rindex(b")") + 2])
        return "T" if letter == "t" else letter

    def queued_s(self) -> float:
        """Seconds its main thread has waited for a processor; 0 where the kernel won't say."""
        try:
            return int(_read(f"/proc/{self.pid}/schedstat").split()[1]) * 1e-9
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
        import psutil

        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                return process.create_time()
        return None


def _read(path: str) -> bytes:
    """Reads a short file of the kernel, in three system calls where ``open`` needs eight."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
