"""What one rank's processes hold, read between its evaluations and saves."""

import contextlib
import os
import resource

from slav1.monitor.ceiling import Ceiling, MemoryCeiling
from slav1.monitor.process_tree import ProcessTree, TreeMemory, num_fds, num_threads
from slav1.phase import STEP_PHASES
from slav1.recorder.layout import Word
from slav1.sample import Usage

READ_EVERY_S = 0.04
"""Pause between two readings of a rank of up to ``FEW_PROCESSES``, in seconds, while its steps
are short. More processes are read less often."""

READ_EVERY_STEPS = 4
"""Steps that make a reading worth while before the longer pause is over."""

LONG_READ_EVERY_S = 0.2
"""Pause between two readings of a rank whose steps are long, in seconds."""

FEW_PROCESSES = 4

COUNT_EVERY_S = 1.0
"""Pause between two countings of descriptors and threads, in seconds."""

CEILING_EVERY_S = 5.0
"""Pause between two looks at what memory there is, in seconds."""

_STEP_PHASES = frozenset(int(phase) for phase in STEP_PHASES)


class UsageReader:
    """Reads one rank from outside, in some thousandths of the monitor's time."""

    def __init__(self, pid: int, rank: int, words: "memoryview[int]") -> None:
        """Reads nothing yet.

        Args:
            pid: Process of the rank.
            rank: Global rank.
            words: Words of its block.
        """
        self._pid = pid
        self._rank = rank
        self._words = words
        self._memory = TreeMemory()
        self._ceiling = MemoryCeiling(pid)
        self._known = Ceiling(limit_mib=None, free_mib=None)
        self._fd_limit: int | None = None
        with contextlib.suppress(OSError, ValueError):
            limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
            self._fd_limit = None if limit == resource.RLIM_INFINITY else limit
        self._num_records = 0
        self._read_at_s = self._read_late_at_s = float("-inf")
        self._count_at_s = self._ceiling_at_s = float("-inf")

    def read(self, tree: ProcessTree, others: frozenset[int], now_s: float) -> Usage | None:
        """Reads the rank if it has ended a step since the last time and it is time to.

        Args:
            tree: The node's processes.
            others: Processes of other ranks.
            now_s: Monotonic clock, in seconds.

        Returns:
            None also if it was not, or did not stay, in the middle of training: what an
            evaluation or a save takes for itself is no drift.
        """
        words = self._words
        num_steps = words[Word.NUM_RECORDS] - self._num_records
        at_s = self._read_at_s if num_steps >= READ_EVERY_STEPS else self._read_late_at_s
        if now_s < at_s or num_steps == 0:
            return None
        before = self._moment()
        if before is None:
            return None
        pids = [self._pid, *tree.below(self._pid, others | {os.getpid()}, now_s)]
        host_mib = self._memory.read_mib(pids, now_s)
        is_counted = now_s >= self._count_at_s
        usage = Usage(
            rank=self._rank,
            step=words[Word.STEP],
            time_s=now_s,
            host_mib=host_mib,
            num_fds=num_fds(self._pid) if is_counted else None,
            num_threads=num_threads(self._pid) if is_counted else None,
            ceiling_mib=self._known.limit_mib,
            free_mib=self._known.free_mib,
            fd_limit=self._fd_limit,
            device_mib=words[Word.DEVICE_MIB] or None,
            num_saves=words[Word.NUM_SAVES],
            num_evaluations=words[Word.NUM_EVALUATIONS],
            num_epochs=words[Word.NUM_EPOCHS],
        )
        self._look_up(now_s, is_counted=is_counted)
        by_size = max(1.0, len(pids) / FEW_PROCESSES)
        self._read_at_s = now_s + READ_EVERY_S * by_size
        self._read_late_at_s = now_s + LONG_READ_EVERY_S * by_size
        if self._moment() != before:
            return None
        self._num_records = words[Word.NUM_RECORDS]
        return usage

    def _look_up(self, now_s: float, *, is_counted: bool) -> None:
        if is_counted:
            self._count_at_s = now_s + COUNT_EVERY_S
        if now_s >= self._ceiling_at_s:
            self._known = self._ceiling.read()
            self._ceiling_at_s = now_s + CEILING_EVERY_S

    def _moment(self) -> tuple[int, ...] | None:
        """Counts that hold now; None outside of a step."""
        words = self._words
        if words[Word.PHASE] & 255 not in _STEP_PHASES:
            return None
        return words[Word.NUM_SAVES], words[Word.NUM_EVALUATIONS], words[Word.NUM_EPOCHS]
