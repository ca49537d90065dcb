"""The ledger file of a run that is going on: made late if it must be, and ours alone."""

import fcntl
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from slav1.ledger import Entry, LedgerWriter


class RunTakenError(OSError):
    """Another coordinator that still runs writes this ledger."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"The run in {path.parent} is being written by another job that still runs. Wait "
            "for it to end, or give this one another SLA_RUN_ID or run_dir."
        )
        self.path = path


class RunLedger:
    """Keeps lines in memory until the disk takes the file, and marks the run as taken.

    A disk that is full can refuse even to make the file. Training is worth more than
    its ledger, so that is no error.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Opens the ledger, or makes a note to try again.

        Args:
            path: The file; its folder is made if it is not there.
            say: Tells people something in one sentence.

        Raises:
            RunTakenError: If another process that still runs writes it.
        """
        self.path = path
        self._say = say
        self._waiting: deque[Entry] = deque(maxlen=LedgerWriter.MAX_WAITING)
        self._num_lost = 0
        self._lock: int | None = None
        self._writer: LedgerWriter | None = None
        self._is_closed = False
        error = self._open()
        if isinstance(error, RunTakenError):
            raise error
        if error is not None:
            say(
                f"The ledger {path} can't be made: {error}. Training goes on; up to "
                f"{LedgerWriter.MAX_WAITING} lines are kept in memory and tried again. Free "
                "some space there, or set another run directory."
            )

    def write(self, entry: Entry) -> None:
        """Appends one entry, now or later."""
        if self._writer is not None:
            self._writer.write(entry)
            return
        if len(self._waiting) == self._waiting.maxlen:
            self._num_lost += 1
        self._waiting.append(entry)

    def flush(self) -> None:
        """Tries again to write what the disk refused."""
        if self._writer is None:
            self._open()
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Tries a last time, and says how many lines were lost. The run stays taken.

        A second call does nothing.
        """
        if self._is_closed:
            return
        self.flush()
        self._is_closed = True
        num_missing = len(self._waiting) + self._num_lost
        if self._writer is not None:
            num_missing += self._writer.close()
        self._waiting.clear()
        self._num_lost = 0
        if num_missing:
            self._say(f"{num_missing} lines of the ledger {self.path} could not be written.")

    def let_go(self) -> None:
        """Lets another coordinator take the run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> OSError | None:
        """Opens the file and writes what waits; returns what prevented it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            writer = LedgerWriter(self.path, on_trouble=self._say)
        except OSError as error:
            return error
        try:
            self._lock = _lock(self.path)
        except OSError as error:
            writer.close()
            return error
        self._writer = writer
        while self._waiting:
            writer.write(self._waiting.popleft())
        return None


def is_taken(path: Path) -> bool:
    """Whether a process that still runs writes this ledger."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # This file system knows no locks.
        return False
    finally:
        os.close(fd)
    return False


def _lock(path: Path) -> int | None:
    """Marks the run as taken, as long as this process lives."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise RunTakenError(path) from error
    except OSError:
        # This file system knows no locks: then two jobs can't be told apart.
        os.close(fd)
        return None
    return fd
