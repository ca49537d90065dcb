"""One rank's shared block: anonymous memory that a second process can map too."""

import contextlib
import mmap
import os
import tempfile
from pathlib import Path

from slav1.recorder.layout import HEADER_BYTES, MAGIC, VERSION, Word, block_bytes


class BlockVersionError(ValueError):
    """A block was written by another version, or is no block at all."""


class Block:
    """Words and records of one rank, in memory shared through a file descriptor.

    The memory has no name anywhere, so nothing is left behind whichever process
    dies, and a store to it never waits for a disk. The monitor writes it to
    ``ring-<rank>.bin`` when something happened.
    """

    def __init__(self, fd: int) -> None:
        """Maps the block behind ``fd`` and takes over the descriptor.

        Raises:
            BlockVersionError: If it is no block of this version.
        """
        self.fd = fd
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self.words = memoryview(self._memory)[:HEADER_BYTES].cast("q")
        self.records = memoryview(self._memory)[HEADER_BYTES:]
        try:
            check_header(self.words[Word.MAGIC], self.words[Word.VERSION])
        except BlockVersionError:
            self.close()
            raise

    @classmethod
    def create(cls, *, rank: int, num_slots: int) -> "Block":
        """Makes an empty block for ``rank`` with room for ``num_slots`` records."""
        fd = _anonymous_file()
        os.truncate(fd, block_bytes(num_slots))
        os.pwrite(fd, MAGIC.to_bytes(8, "little") + VERSION.to_bytes(8, "little"), 0)
        block = cls(fd)
        block.words[Word.RANK] = rank
        block.words[Word.NUM_SLOTS] = num_slots
        block.words[Word.PID] = os.getpid()
        return block

    def save(self, path: Path) -> None:
        """Writes the block as it is now to ``path``; OSError if that fails."""
        part = path.with_name(f".{path.name}.part")
        try:
            part.write_bytes(self._memory)
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def close(self) -> None:
        """Unmaps the block and closes its descriptor."""
        self.words.release()
        self.records.release()
        self._memory.close()
        os.close(self.fd)


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


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("slav1-ring", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="slav1-ring-") as file:
        return os.dup(file.fileno())
