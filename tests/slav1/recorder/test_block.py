"""The shared block: what it is made of, what is refused, what is saved."""

import os
import struct
from pathlib import Path

import pytest

from slav1.recorder import Block
from slav1.recorder.block import BlockVersionError, anonymous_file
from slav1.recorder.layout import HEADER_BYTES, MAGIC, VERSION, Word, block_bytes


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_second_process_sees_what_the_first_writes():
    """
    Two mappings of one descriptor are the same memory, with rank, size and process in it.
    """
    first = Block.create(rank=5, num_slots=16)
    second = Block(os.dup(first.fd))
    first.words[Word.STEP] = 77
    seen = [second.words[word] for word in (Word.RANK, Word.NUM_SLOTS, Word.PID, Word.STEP)]
    first.close()
    second.close()

    assert seen == [5, 16, os.getpid(), 77]


def test_block_leaves_no_descriptor():
    """
    A block takes its descriptor over and gives it back when it is closed.
    """
    before = names("/proc/self/fd")
    block = Block.create(rank=0, num_slots=16)
    Block(os.dup(block.fd)).close()
    block.close()

    assert names("/proc/self/fd") == before


def test_nobody_can_make_the_memory_shorter():
    """
    A block can't be cut by anybody who has its descriptor: whoever has mapped it would be
    killed by the next look.
    """
    block = Block.create(rank=0, num_slots=16)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(block.fd, 0)
    block.close()


@pytest.mark.parametrize(
    ("header", "num_bytes", "text"),
    [
        ((MAGIC + 1, VERSION, 0, 16), block_bytes(16), "not SLARING1"),
        ((MAGIC, VERSION + 1, 0, 16), block_bytes(16), f"reads format {VERSION}"),
        ((MAGIC, VERSION, 0, 17), block_bytes(16), "room for 17 records"),
        ((MAGIC, VERSION, 0, 0), block_bytes(16), "room for 0 records"),
        ((MAGIC, VERSION, 0, -3), block_bytes(16), "room for -3 records"),
        ((MAGIC, VERSION, 0, 1 << 62), block_bytes(16), "is cut"),
        ((MAGIC, VERSION, 0, 16), HEADER_BYTES, "is cut"),
        ((MAGIC, VERSION, 0, 16), HEADER_BYTES - 1, "only 255 bytes"),
        ((), 0, "only 0 bytes"),
    ],
)
def test_what_is_no_block_is_refused(header, num_bytes, text):
    """
    Memory of another version, cut, too short or empty is refused with the reason, and the
    descriptor stays the caller's.
    """
    fd = anonymous_file("test")
    os.pwrite(fd, struct.pack(f"={len(header)}q", *header), 0)
    os.truncate(fd, num_bytes)
    with pytest.raises(BlockVersionError, match=text):
        Block(fd)
    os.close(fd)


def test_what_cannot_be_mapped_is_refused():
    """
    A descriptor that is no memory, or may not be written to, is refused as no block.
    """
    read, write = os.pipe()
    block = Block.create(rank=0, num_slots=16)
    read_only = os.open(f"/proc/self/fd/{block.fd}", os.O_RDONLY)
    for fd in (read, read_only):
        with pytest.raises(BlockVersionError):
            Block(fd)
    for fd in (read, write, read_only):
        os.close(fd)
    block.close()


def test_saved_block_is_whole_or_not_there(tmp_path):
    """
    Saving writes the block as it is, over an earlier one; when it fails, the earlier one
    stays, and no part of the new one is left.
    """
    block = Block.create(rank=0, num_slots=16)
    path = tmp_path / "ring-0.bin"
    block.save(path)
    block.words[Word.STEP] = 5
    (tmp_path / ".ring-0.bin.part").mkdir()
    with pytest.raises(OSError, match="directory"):
        block.save(path)
    kept = path.read_bytes()
    (tmp_path / ".ring-0.bin.part").rmdir()
    block.save(path)
    block.close()

    assert len(kept) == block_bytes(16)
    assert struct.unpack_from("=q", kept, 8 * Word.STEP) == (0,)
    assert struct.unpack_from("=q", path.read_bytes(), 8 * Word.STEP) == (5,)
    assert names(tmp_path) == ["ring-0.bin"]


def test_memory_without_memfd(monkeypatch):
    """
    Where the kernel or the container refuses nameless memory, a file without a name does.
    """

    def refuse(*_):
        raise PermissionError("forbidden by seccomp")

    monkeypatch.setattr(os, "memfd_create", refuse)
    before = set(names("/dev/shm"))
    block = Block.create(rank=1, num_slots=16)
    other = Block(os.dup(block.fd))
    block.words[Word.STEP] = 3
    seen = other.words[Word.STEP]
    left = set(names("/dev/shm")) - before
    block.close()
    other.close()

    assert seen == 3
    assert not {name for name in left if "slav1" in name}
