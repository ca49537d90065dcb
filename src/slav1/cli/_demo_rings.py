"""Looking over a running job's shoulder: the blocks of its ranks, read from outside.

A block has no name in any folder, but Linux shows the descriptors of a process under
``/proc``, and one of them is the block. Where that is not so there is nothing to see.
"""

import contextlib
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slav1.phase import Phase
from slav1.recorder.block import BlockVersionError, check_header
from slav1.recorder.layout import HEADER_BYTES, Word
from slav1.recorder.ring import RingReader
from slav1.sample import Sample

_NAME = "slav1-ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNow:
    """Where one rank is."""

    rank: int
    """Global rank."""

    step: int
    """Step it is in."""

    phase: Phase
    """Phase it is in."""

    loss: float | None
    """Loss of its last step."""

    step_time_s: float | None
    """Wall time of its last step, in seconds."""


class RingView:
    """One rank's block, mapped for reading only."""

    def __init__(self, fd: int) -> None:
        """Maps the block behind ``fd``, which stays the caller's.

        Raises:
            BlockVersionError: If it is no block of this version, or not one yet.
        """
        num_bytes = os.fstat(fd).st_size
        if num_bytes < HEADER_BYTES:
            raise BlockVersionError(f"A flight ring of {num_bytes} bytes has no header yet.")
        self._memory = mmap.mmap(fd, num_bytes, access=mmap.ACCESS_READ)
        self._words = memoryview(self._memory)[:HEADER_BYTES].cast("q")
        self._records = memoryview(self._memory)[HEADER_BYTES:]
        self.last: Sample | None = None
        """Newest sample that :meth:`read` returned."""
        try:
            check_header(self._words[Word.MAGIC], self._words[Word.VERSION])
        except BlockVersionError:
            self.close()
            raise
        self._reader = RingReader(self._words, self._records)

    @property
    def rank(self) -> int:
        """Global rank that writes here."""
        return self._words[Word.RANK]

    def read(self) -> list[Sample]:
        """Returns the samples written since the last call."""
        samples = list(self._reader.new_samples())
        if samples:
            self.last = samples[-1]
        return samples

    def now(self) -> RankNow:
        """Returns where the rank is."""
        number = self._words[Word.PHASE] & 0xFF
        return RankNow(
            rank=self.rank,
            step=self._words[Word.STEP],
            phase=Phase(number),
            loss=self.last.loss if self.last else None,
            step_time_s=self.last.step_time_s if self.last else None,
        )

    def close(self) -> None:
        """Unmaps the block."""
        self._words.release()
        self._records.release()
        self._memory.close()


class Rings:
    """The blocks of all ranks of a job, found as they appear."""

    def __init__(self) -> None:
        self._views: dict[int, RingView] = {}
        self._losses: dict[int, dict[int, float]] = {}
        self._ends_s: dict[tuple[int, int], float] = {}

    def __len__(self) -> int:
        return len(self._views)

    def find(self, pids: Iterable[int]) -> None:
        """Takes up the blocks that these processes hold and that are not known yet."""
        for pid in pids:
            for path in _block_descriptors(pid):
                self._take(path)

    def read(self) -> None:
        """Reads what all ranks wrote since the last call."""
        for rank, view in self._views.items():
            for sample in view.read():
                # A step that is made again after a fault is not the one that was hit.
                self._ends_s.setdefault((rank, sample.step), sample.time_s)
                if sample.loss is not None:
                    self._losses.setdefault(sample.step, {})[rank] = sample.loss

    def now(self) -> tuple[RankNow, ...]:
        """Returns where each rank is, ordered by rank."""
        return tuple(self._views[rank].now() for rank in sorted(self._views))

    def mean_losses(self) -> list[float]:
        """Returns the loss of each step that all known ranks have finished, in order."""
        return [
            sum(by_rank.values()) / len(by_rank)
            for _, by_rank in sorted(self._losses.items())
            if len(by_rank) == len(self._views)
        ]

    def end_of_step_s(self, *, rank: int, step: int) -> float | None:
        """When a rank finished a step, on the monotonic clock; None if it was not seen."""
        return self._ends_s.get((rank, step))

    def close(self) -> None:
        """Unmaps all blocks, as when their processes have ended; others may be found after
        that. What was read from them stays."""
        while self._views:
            self._views.popitem()[1].close()

    def _take(self, path: str) -> None:
        # A process may end, or just begin, while we look at it: then there is no block.
        with contextlib.suppress(OSError, BlockVersionError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                view = RingView(fd)
            finally:
                os.close(fd)
            if view.rank in self._views:
                view.close()
            else:
                self._views[view.rank] = view


def _block_descriptors(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    with contextlib.suppress(OSError):
        return [str(path) for path in folder.iterdir() if _leads_to_block(path)]
    return []


def _leads_to_block(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return _NAME in str(path.readlink())
    return False
