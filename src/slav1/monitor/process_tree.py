"""Which processes belong to a rank, and what they hold: read from ``/proc`` at a slow pace."""

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from time import perf_counter

SCAN_EVERY_S = 10.0
"""Pause between two looks at which processes there are, and between two walks over the pages of
one, in seconds, at least."""

SHARE_OF_TIME = 0.001
"""Share of the monitor's time that one kind of reading may take; slower ones come later."""

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_KIB_IN_MIB = 1024.0
_SHARES = frozenset({b"Rss", b"Pss", b"Pss_Anon", b"Pss_Shmem", b"Anonymous"})


class ProcessTree:
    """The processes of a node by their parents; one for all its ranks."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._children: Mapping[int, list[int]] = {}
        self._scan_at_s = float("-inf")

    def below(self, pid: int, others: Collection[int], now_s: float) -> list[int]:
        """The processes that one has started, and those that they have.

        Args:
            pid: The process.
            others: Processes that are not its own though it may have started them: other
                ranks, the monitor. What these have started is left out too.
            now_s: Monotonic clock, in seconds.
        """
        if now_s >= self._scan_at_s:
            start_s = perf_counter()
            self._children = _children_by_parent()
            self._scan_at_s = now_s + pause_s(perf_counter() - start_s, SCAN_EVERY_S)
        found: list[int] = []
        ahead = [pid]
        while ahead:
            own = [c for c in self._children.get(ahead.pop(), ()) if c not in others and c != pid]
            found += own
            ahead += own
        return found


class TreeMemory:
    """Host memory of a process and those it has started, shared pages counted once.

    Pages of files are left out: a data set that is mapped into memory fills it page by page,
    and the kernel takes them back when it needs them.

    What is right, each process's share of its pages (PSS), takes the kernel a walk over all
    of them. So it is read rarely, and in between the sum moves by what the anonymous pages
    do, which is one short file a process.
    """

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._offset_mib: dict[int, float] = {}
        self._walk_at_s = float("-inf")

    def read_mib(self, pids: list[int], now_s: float) -> float | None:
        """Memory of some processes together, in MiB; None if the first can't be read.

        Args:
            pids: The process itself, and those below it.
            now_s: Monotonic clock, in seconds.
        """
        own = {pid: mib for pid in pids if (mib := _anonymous_mib(pid)) is not None}
        if pids[0] not in own:
            return None
        if now_s >= self._walk_at_s or own.keys() - self._offset_mib.keys():
            start_s = perf_counter()
            self._offset_mib = {pid: _share_mib(pid, mib) - mib for pid, mib in own.items()}
            self._walk_at_s = now_s + pause_s(perf_counter() - start_s, SCAN_EVERY_S)
        return max(0.0, sum(mib + self._offset_mib[pid] for pid, mib in own.items()))


def pause_s(cost_s: float, least_s: float) -> float:
    """How long to wait after a reading that took ``cost_s``, in seconds."""
    return max(least_s, cost_s / SHARE_OF_TIME)


def num_fds(pid: int) -> int | None:
    """Open file descriptors of a process; None if they can't be counted."""
    with contextlib.suppress(OSError):
        # Newer kernels tell the number as the folder's size; others say 0.
        folder = Path(f"/proc/{pid}/fd")
        return folder.stat().st_size or sum(1 for _ in folder.iterdir())
    return None


def num_threads(pid: int) -> int | None:
    """Threads of a process; None if they can't be counted."""
    fields = _stat_fields(pid)
    return int(fields[17]) if fields else None


def _children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for pid in [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]:
            if fields := _stat_fields(pid):
                children.setdefault(int(fields[1]), []).append(pid)
    return children


def _stat_fields(pid: int) -> list[bytes]:
    """Fields of the kernel's line about a process from its state on; none if it is gone."""
    raw = _read(f"/proc/{pid}/stat")
    return raw[raw.rindex(b")") + 2 :].split() if b")" in raw else []


def _anonymous_mib(pid: int) -> float | None:
    """What a process has resident beside files and shared memory, in MiB."""
    fields = _read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE_MIB if len(fields) > 2 else None


def _share_mib(pid: int, anonymous_mib: float) -> float:
    """Share of a process in its pages but those of files, in MiB; where the kernel does not
    tell, what it has for itself."""
    kib = {
        name: int(rest.split()[0])
        for line in _read(f"/proc/{pid}/smaps_rollup").splitlines()
        for name, _, rest in [line.partition(b":")]
        if name in _SHARES
    }
    if b"Pss_Anon" in kib:
        return (kib[b"Pss_Anon"] + kib.get(b"Pss_Shmem", 0)) / _KIB_IN_MIB
    if not kib.keys() >= {b"Rss", b"Pss", b"Anonymous"}:
        return anonymous_mib
    # Kernels before 5.4 do not tell whose share is what: pages of files count as its own.
    return max(0, kib[b"Pss"] - (kib[b"Rss"] - kib[b"Anonymous"])) / _KIB_IN_MIB


def _read(path: str) -> bytes:
    """Reads a short file of the kernel; empty if it can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)
