"""What the monitor reads about a rank's processes, on real ones."""

import mmap
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from slav1.monitor.process_tree import ProcessTree, TreeMemory, num_fds, num_threads
from slav1.monitor.usage_reader import UsageReader
from slav1.phase import Phase
from slav1.recorder.layout import Word

from ._ranks import Rank

NOBODY: frozenset[int] = frozenset()


@pytest.fixture
def trainer() -> Iterator[Rank]:
    rank = Rank(0)
    yield rank
    rank.close()


def _hold(mib: int, pipe: Connection) -> None:
    held = bytearray(os.urandom(1 << 20) * mib)
    pipe.send(len(held))
    pipe.recv()


@pytest.fixture
def child_with_100_mib() -> Iterator[tuple[int, float]]:
    """Its process id, and what this process held before."""
    before_mib = TreeMemory().read_mib([os.getpid()], 0.0)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(100, theirs))
    process.start()
    ours.recv()
    yield process.pid, before_mib
    ours.send(None)
    process.join()
    ours.close()
    theirs.close()


@pytest.mark.slow
def test_memory_of_workers_counts_and_shared_pages_once(child_with_100_mib):
    """
    A worker's own 100 MiB are counted with the rank, what it shares with the rank by the
    fork is not counted again, and processes of others are left out.
    """
    tree, me = ProcessTree(), os.getpid()
    child, before_mib = child_with_100_mib

    both_mib = TreeMemory().read_mib([me, child], 0.0)

    assert child in tree.below(me, NOBODY, time.monotonic())
    assert child not in tree.below(me, {child}, time.monotonic())
    assert both_mib - before_mib == pytest.approx(100.0, abs=30.0)


def test_between_two_walks_the_sum_follows_the_resident_pages():
    """
    Memory that is taken after the slow reading shows in the next fast one, and a process
    that is gone is no error.
    """
    memory, me = TreeMemory(), os.getpid()
    before = memory.read_mib([me], 1_000.0)

    held = bytearray(os.urandom(1 << 20) * 50)
    after = memory.read_mib([me], 1_000.1)

    assert len(held) == 50 << 20
    assert after - before == pytest.approx(50.0, abs=10.0)
    assert memory.read_mib([2**22 + 1], 1_000.2) is None


def test_pages_of_a_mapped_file_are_not_held(tmp_path):
    """
    A data set that is mapped into memory and read through is not counted, neither by the fast
    readings nor by the slow one: the kernel takes its pages back when it needs them.
    """
    path, memory, me = tmp_path / "tokens.bin", TreeMemory(), os.getpid()
    path.write_bytes(bytes(64 << 20))
    before = memory.read_mib([me], 1_000.0)

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as tokens:
        assert sum(tokens[:: 1 << 12]) == 0
        fast, slow = memory.read_mib([me], 1_000.1), TreeMemory().read_mib([me], 1_000.2)

    assert fast == pytest.approx(before, abs=10.0)
    assert slow == pytest.approx(before, abs=10.0)


@pytest.mark.parametrize(
    ("rollup", "held_mib"),
    [
        ("Rss: 204800 kB\nPss: 153600 kB\nPss_Anon: 51200 kB\nPss_Shmem: 10240 kB\n", 60.0),
        ("Rss: 204800 kB\nPss: 153600 kB\nAnonymous: 102400 kB\n", 50.0),
        ("", 100.0),
    ],
    ids=["by kind", "before Linux 5.4", "not told"],
)
def test_what_older_kernels_tell_is_used_too(monkeypatch, rollup, held_mib):
    """
    Pages that a worker shares with its trainer are counted once where the kernel tells shares at
    all, by kind of page or not.
    """
    pages = (100 << 20) // os.sysconf("SC_PAGE_SIZE")
    files = {
        "/proc/42/statm": f"900000 {2 * pages} {pages} 5 0 123 0\n".encode(),
        "/proc/42/smaps_rollup": f"55-7f ---p 0 00:00 0 [rollup]\n{rollup}".encode(),
    }
    monkeypatch.setattr("slav1.monitor.process_tree._read", files.__getitem__)

    assert TreeMemory().read_mib([42], 0.0) == pytest.approx(held_mib)


def test_descriptors_and_threads_are_counted():
    """
    An open pipe is two descriptors more; a process that is gone has none to count.
    """
    before = num_fds(os.getpid())

    ends = os.pipe()
    try:
        assert num_fds(os.getpid()) - before == 2
    finally:
        for end in ends:
            os.close(end)
    assert num_threads(os.getpid()) >= 1
    assert (num_fds(2**22 + 1), num_threads(2**22 + 1)) == (None, None)


def test_a_rank_is_read_in_the_middle_of_training_only(trainer):
    """
    A reading comes after a step has ended and not again before the next; none is taken in
    an evaluation or a save, and these are counted for the readings after.
    """
    reader, tree = UsageReader(os.getpid(), 0, trainer.block.words), ProcessTree()

    assert reader.read(tree, NOBODY, 1.0) is None
    trainer.finish_step(0)
    first = reader.read(tree, NOBODY, 2.0)
    assert reader.read(tree, NOBODY, 3.0) is None
    trainer.finish_step(1)
    trainer.recorder.enter(int(Phase.CHECKPOINT))
    assert reader.read(tree, NOBODY, 4.0) is None
    trainer.recorder.enter(int(Phase.BETWEEN))
    trainer.recorder.forget_times()
    trainer.recorder.count_epoch()
    second = reader.read(tree, NOBODY, 5.0)

    assert first is not None and second is not None
    assert first.host_mib > 10.0 and first.num_fds > 2 and first.fd_limit > 2
    assert (first.num_saves, first.num_epochs) == (0, 0)
    assert (second.num_saves, second.num_evaluations, second.num_epochs) == (1, 0, 1)
    assert second.free_mib <= second.ceiling_mib


def test_the_device_says_how_much_it_has(trainer):
    """
    The size of a device stands in the block and comes with each reading.
    """
    trainer.recorder.has_device(81_920.0)
    trainer.finish_step(0)

    usage = UsageReader(os.getpid(), 0, trainer.block.words).read(ProcessTree(), NOBODY, 1.0)

    assert usage.device_mib == 81_920
    assert trainer.block.words[Word.DEVICE_MIB] == 81_920
