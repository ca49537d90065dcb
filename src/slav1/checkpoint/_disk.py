"""The calls that change a disk, in one place: what the proof of crash safety records."""

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

RENAME_EXCHANGE = 2
AT_FDCWD = -100
# What file systems without an atomic exchange say.
NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


class Disk:
    """A disk as the kernel shows it. Every method raises :class:`OSError`.

    An ``fsync`` that failed is never tried again on the same file: the kernel may have
    dropped the data and would then report success. The file is given up instead.

    Args:
        flush: Brings what an open file holds to the medium; fails with :class:`OSError`.
        after_flush: Told of a file that was flushed, before it is read back; None for
            nobody. Fault injection damages files here, as a failing disk does.
    """

    def __init__(
        self,
        flush: Callable[[int], None] = os.fsync,
        after_flush: Callable[[Path], None] | None = None,
    ) -> None:
        self._flush = flush
        self._after_flush = after_flush

    def write(self, path: Path, data: bytes) -> None:
        """Writes a small file anew; not yet flushed."""
        with path.open("wb") as file:
            file.write(data)

    def append(self, path: Path, data: bytes) -> None:
        """Adds to the end of a file by one call; not yet flushed."""
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            if os.write(file, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(file)

    def fsync(self, path: Path) -> None:
        """Waits until the contents of a file, or the names in a folder, are on the medium."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._flush(file)
        finally:
            os.close(file)

    def is_flushed(self, path: Path) -> None:
        """Says that a file is on the medium, from where it is about to be read."""
        if self._after_flush is not None:
            self._after_flush(path)

    def rename(self, old: Path, new: Path) -> None:
        """Gives a file or folder another name; an existing file ``new`` is replaced."""
        old.replace(new)

    def exchange(self, one: Path, other: Path) -> bool:
        """Swaps two names in one step.

        Returns:
            False if this file system has no such step; nothing has changed then.
        """
        call = _renameat2()
        if call is None:
            return False
        if call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
            return True
        number = ctypes.get_errno()
        if number in NO_EXCHANGE:
            return False
        raise OSError(number, os.strerror(number), str(one), None, str(other))

    def unlink(self, path: Path) -> None:
        """Removes a file."""
        path.unlink()

    def rmdir(self, path: Path) -> None:
        """Removes an empty folder."""
        path.rmdir()


def remove(disk: Disk, path: Path) -> None:
    """Removes a file, a link, or a folder with all that is in it."""
    if path.is_symlink() or not path.is_dir():
        disk.unlink(path)
        return
    for inner in path.iterdir():
        remove(disk, inner)
    disk.rmdir(path)


def usual_mode(path: Path) -> None:
    """Gives a file that only its owner can read the permissions that the umask asks for.

    Helpers for temporary files make them so; under its final name it would shut others out.
    """
    if path.stat().st_mode & 0o777 == 0o600:
        path.chmod(0o666 & ~_umask())


def _umask() -> int:
    # Asking through os.umask would change it for a moment, under all threads.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


@cache
def _renameat2() -> Any:
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return None
    call.argtypes = [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    ]
    return call
