"""Digests of files: chunks in parallel, one root over them."""

import errno
import hashlib
import itertools
import mmap
import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import xxhash

Algorithm: TypeAlias = Literal["xxh3", "sha256"]
"""``xxh3`` is XXH3 with 128 bits and finds damage; ``sha256`` also withstands intent."""

CHUNK_BYTES = 4 << 20
"""How much is read and hashed at a time. Part of the format: another size, another root."""

BLOCK_BYTES = 4096
"""Reads past the page cache start and end at multiples of this."""

MAX_THREADS = 4
"""More gain nothing: two fill a disk, four the memory bus."""

_NEW: dict[str, Callable[..., Any]] = {"xxh3": xxhash.xxh3_128, "sha256": hashlib.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What a file contained when it was read."""

    size: int
    """Length in bytes."""

    root: str
    """Digest over index, length and digest of every chunk, and the whole length; hex."""


def new_hash(algorithm: Algorithm) -> Any:
    """An empty hash with ``update``, ``digest`` and ``hexdigest``."""
    return _NEW[algorithm]()


def digest_file(
    path: Path,
    algorithm: Algorithm = "xxh3",
    *,
    from_medium: bool = False,
    num_threads: int | None = None,
) -> Digest:
    """Reads a whole file and returns what it contains.

    Args:
        path: The file.
        algorithm: Which digest.
        from_medium: Whether to read past the page cache, so that what counts is what the
            medium holds and not what the kernel remembers. Flush the file before.
        num_threads: How many threads read and hash; None takes what pays.

    Raises:
        OSError: If it can't be read.
    """
    file, is_direct = _open(path, from_medium=from_medium)
    try:
        size = os.fstat(file).st_size
        if from_medium and not is_direct:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        reader = _Reader(path, file, size, algorithm, is_direct=is_direct)
        chunks = reader.digest_chunks(num_threads or _num_threads())
    finally:
        os.close(file)
    return Digest(size=size, root=_root(chunks, size, algorithm))


def _num_threads() -> int:
    # Twice the cores: while one waits for the disk, another hashes.
    return min(MAX_THREADS, 2 * len(os.sched_getaffinity(0)))


def _open(path: Path, *, from_medium: bool) -> tuple[int, bool]:
    if from_medium:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT), True
        except OSError as error:
            # Some file systems have no direct reads; dropping their cached pages must do.
            if error.errno != errno.EINVAL:
                raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False


def _root(chunks: list[bytes], size: int, algorithm: Algorithm) -> str:
    whole = new_hash(algorithm)
    for index, chunk in enumerate(chunks):
        length = min(CHUNK_BYTES, size - index * CHUNK_BYTES)
        whole.update(struct.pack("<QQ", index, length) + chunk)
    whole.update(struct.pack("<Q", size))
    return str(whole.hexdigest())


class _Reader:
    """Chunks of one open file, handed to whichever thread is free."""

    def __init__(
        self, path: Path, file: int, size: int, algorithm: Algorithm, *, is_direct: bool
    ) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._algorithm = algorithm
        self._is_direct = is_direct
        self._num_chunks = -(-size // CHUNK_BYTES)
        self._next = itertools.count()
        self._found: list[bytes] = [b""] * self._num_chunks

    def digest_chunks(self, num_threads: int) -> list[bytes]:
        num_threads = min(num_threads, self._num_chunks)
        if num_threads <= 1:
            self._work()
            return self._found
        with ThreadPoolExecutor(num_threads) as pool:
            for done in [pool.submit(self._work) for _ in range(num_threads)]:
                done.result()
        return self._found

    def _work(self) -> None:
        if not self._num_chunks:
            return
        room = min(CHUNK_BYTES, -(-self._size // BLOCK_BYTES) * BLOCK_BYTES)
        # Anonymous maps start at a page, as direct reads need it.
        with mmap.mmap(-1, room) as buffer, memoryview(buffer) as view:
            for index in self._next:
                if index >= self._num_chunks:
                    return
                length = self._fill(view, index)
                chunk = new_hash(self._algorithm)
                with view[:length] as part:
                    chunk.update(part)
                self._found[index] = chunk.digest()

    def _fill(self, view: memoryview, index: int) -> int:
        start = index * CHUNK_BYTES
        length = min(CHUNK_BYTES, self._size - start)
        filled = 0
        while filled < length:
            # A direct read that stopped early starts again at the block it stopped in.
            begun = filled - filled % BLOCK_BYTES if self._is_direct else filled
            with view[begun:] as rest:
                got = os.preadv(self._file, [rest], start + begun)
            if begun + got <= filled:
                raise OSError(errno.EIO, "became shorter while it was read", str(self._path))
            filled = begun + got
        return length
