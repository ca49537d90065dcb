"""Reading long files in pieces: constant memory, and the disk kept busy meanwhile."""

import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PIECE_BYTES = 1 << 18
"""Bytes read at a time; few enough to stay in a processor's own cache."""

AHEAD_BYTES = 16 << 20
"""Bytes that the kernel is asked to read while those before are looked at."""


def pieces(file: BinaryIO, start: int, length: int) -> Iterator[memoryview]:
    """Yields the bytes of a part of a file, piece by piece.

    Args:
        file: Opened without a buffer of Python's own.
        start: First byte.
        length: Bytes; fewer come if the file ends before.

    Yields:
        The next bytes. Their memory is used again for the next piece.
    """
    buffer = memoryview(bytearray(min(PIECE_BYTES, max(length, 1))))
    at, end = start, start + length
    while at < end:
        if (at - start) % AHEAD_BYTES < PIECE_BYTES:
            os.posix_fadvise(file.fileno(), at, 2 * AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        num_read = os.preadv(file.fileno(), [buffer[: min(len(buffer), end - at)]], at)
        if num_read == 0:
            return
        yield buffer[:num_read]
        at += num_read


def crc32_of(file: BinaryIO, start: int, length: int) -> int:
    """The CRC-32 of a part of a file."""
    crc = 0
    for piece in pieces(file, start, length):
        crc = zlib.crc32(piece, crc)
    return crc


def read_small(path: Path, limit_bytes: int = 64 << 20) -> bytes:
    """Reads a file that tells about others.

    Raises:
        OSError: If it can't be read, or is longer than ``limit_bytes``.
    """
    with path.open("rb") as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(f"longer than {limit_bytes} bytes, which no such file is")
    return data


def head_of(path: Path, num_bytes: int) -> bytes:
    """The first bytes of a file; empty if it is no file.

    Raises:
        OSError: If it can't be read.
    """
    if not path.is_file():
        return b""
    with path.open("rb", buffering=0) as file:
        return file.read(num_bytes)


class Part(io.RawIOBase):
    """A part of a file that reads like a file of its own."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        """Takes a file opened without a buffer, the first byte and the number of bytes."""
        super().__init__()
        self.file, self.start, self.length = file, start, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise ValueError("a place before the start of the file was asked for")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: "bytearray | memoryview", /) -> int:  # type: ignore[override]
        wanted = max(0, min(len(buffer), self.length - self._at))
        data = os.pread(self.file.fileno(), wanted, self.start + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
