"""One rank's shared block: anonymous memory that a second process can map too."""

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
from pathlib import Path

from slav1.recorder.layout import HEADER_BYTES, MAGIC, VERSION, Word, block_bytes

# Whoever has mapped the memory would be killed by SIGBUS if somebody made it shorter.
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


_IN_MEMORY = "/dev/shm"  # noqa: S108 - the file gets no name there


class BlockVersionError(ValueError):
    """A block was written by another version, or is no block at all."""


class Block:
    """Words and records of one rank, in memory shared through a file descriptor.

    The memory has no name anywhere, so nothing is left behind whichever process
    dies, and a store to it never waits for a disk. The monitor writes it to
    ``ring-<rank>.bin`` when something happened.
    """

    def __init__(self, fd: int) -> None:
        """Maps the block behind ``fd`` and, if that succeeds, takes over the descriptor.

        Raises:
            BlockVersionError: If it is no block of this version, or is cut.
        """
        num_bytes = os.fstat(fd).st_size
        if num_bytes < HEADER_BYTES:
            raise BlockVersionError(f"This is no flight ring: it has only {num_bytes} bytes.")
        try:
            self._memory = mmap.mmap(fd, num_bytes)
        except OSError as error:
            raise BlockVersionError(
                f"This is no flight ring: it can't be mapped, {error}."
            ) from error
        self.fd = fd
        self.words = memoryview(self._memory)[:HEADER_BYTES].cast("q")
        self.records = memoryview(self._memory)[HEADER_BYTES:]
        try:
            check_header(self.words[Word.MAGIC], self.words[Word.VERSION])
            check_slots(self.words[Word.NUM_SLOTS], num_bytes)
        except BlockVersionError:
            self._unmap()
            raise

    @classmethod
    def create(cls, *, rank: int, num_slots: int) -> "Block":
        """Makes an empty block for ``rank`` with room for ``num_slots`` records."""
        fd = anonymous_file("slav1-ring")
        try:
            os.truncate(fd, block_bytes(num_slots))
            os.pwrite(fd, struct.pack("=5q", MAGIC, VERSION, rank, num_slots, os.getpid()), 0)
            _seal(fd)
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    def save(self, path: Path) -> None:
        """Writes the block as it is now to ``path``; OSError if that fails."""
        save_bytes(self._memory, path)

    def content(self) -> bytes:
        """A copy of the block as it is now."""
        return bytes(self._memory)

    def close(self) -> None:
        """Unmaps the block and closes its descriptor."""
        self._unmap()
        os.close(self.fd)

    def _unmap(self) -> None:
        self.words.release()
        self.records.release()
        self._memory.close()


def save_bytes(content: "bytes | mmap.mmap", path: Path) -> None:
    """Writes the content of a block to ``path``, whole or not at all; OSError if that fails."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def check_header(magic: int, version: int) -> None:
    """Raises BlockVersionError unless both words are those of this version."""
    if magic != MAGIC:
        raise BlockVersionError(
            "This is not a flight ring: its first eight bytes are not SLARING1."
        )
    if version != VERSION:
        raise BlockVersionError(
            f"This flight ring has format {version}, this version of slav1 reads format "
            f"{VERSION}. Read it with the version that wrote it."
        )


def check_slots(num_slots: int, num_bytes: int) -> None:
    """Raises BlockVersionError unless ``num_slots`` records fit into ``num_bytes``."""
    if not 0 < num_slots <= num_bytes or block_bytes(num_slots) > num_bytes:
        raise BlockVersionError(
            f"This flight ring is cut: it says it has room for {num_slots} records, and has "
            f"{num_bytes} bytes."
        )


def anonymous_file(name: str) -> int:
    """Makes a file that lies in memory and has no name in any folder.

    Args:
        name: Shown by the kernel for people who look.

    Returns:
        Its descriptor, closed when another program is started.
    """
    with contextlib.suppress(AttributeError, OSError):
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # Old kernels, and containers that forbid it.
    folder = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryFile(prefix=f"{name}-", dir=folder) as file:
        return os.dup(file.fileno())


def _seal(fd: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, sum(getattr(fcntl, name) for name in _SEALS))
