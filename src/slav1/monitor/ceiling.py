"""How much host memory a process may have: the smallest limit over it, or what the host has."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_MIB = float(1 << 20)
# Control groups of version 1 say "no limit" by a number near 2 ** 63.
_NO_LIMIT = 1 << 60


class _Names(NamedTuple):
    """What the files of one version of control groups are called."""

    limit: str
    usage: str
    reclaimable: tuple[str, ...]
    """Pages of files: the kernel can drop them, whether they were used lately or not."""


_NAMES = {
    "cgroup": _Names(
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
    "cgroup2": _Names("memory.max", "memory.current", ("inactive_file", "active_file")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Host memory there is for a process."""

    limit_mib: float | None
    """The smallest limit, in MiB; None if nothing tells."""

    free_mib: float | None
    """What nobody holds of it, caches that can be dropped included, in MiB."""


class MemoryCeiling:
    """Reads the limits over one process. Where they can't be read there are none."""

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        """Looks for the control groups of a process.

        Args:
            pid: The process.
            root: Folder that holds ``proc`` and ``sys``.
        """
        self._root = root
        self._groups: list[tuple[Path, _Names]] = []
        with contextlib.suppress(OSError, ValueError):
            self._groups = list(_groups(pid, root))

    def read(self) -> Ceiling:
        """The smallest limit now: of each group from the process's own up to the top, and of
        the host."""
        host = _host_memory(self._root / "proc/meminfo")
        limits, free = [host.get("MemTotal")], [host.get("MemAvailable")]
        for folder, names in self._groups:
            limit = _number(folder / names.limit)
            if limit is None or not 0 < limit < _NO_LIMIT:
                continue
            limits.append(limit)
            used = _number(folder / names.usage)
            if used is not None:
                held = used - _reclaimable(folder / "memory.stat", names.reclaimable)
                free.append(max(0, limit - held))
        return Ceiling(limit_mib=_smallest_mib(limits), free_mib=_smallest_mib(free))


def _groups(pid: int, root: Path) -> Iterator[tuple[Path, _Names]]:
    """Folders of the memory groups over a process, its own first."""
    mounts = list(_mounts(root))
    for line in (root / f"proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        kind = "cgroup2" if number == "0" else "cgroup"
        for fs_type, options, inside, place in mounts:
            if fs_type != kind or (kind == "cgroup" and "memory" not in options):
                continue
            folder = root / place.lstrip("/")
            for part in _up_from(_relative(path, inside)):
                yield folder / part, _NAMES[kind]


def _mounts(root: Path) -> Iterator[tuple[str, list[str], str, str]]:
    """Type, options, root inside the file system, and place of each mounted one."""
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        head, dash, tail = line.partition(" - ")
        fields, more = head.split(), tail.split()
        if dash and len(fields) >= 5 and len(more) >= 3 and more[0] in _NAMES:
            yield more[0], more[2].split(","), fields[3], fields[4]


def _relative(path: str, inside: str) -> str:
    """A group's path below the mount; its top if the mount shows another part of the tree."""
    if inside not in ("", "/") and (path == inside or path.startswith(f"{inside}/")):
        path = path[len(inside) :]
    return "" if ".." in path.split("/") else path.strip("/")


def _up_from(path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part]
    for length in range(len(parts), -1, -1):
        yield "/".join(parts[:length])


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        # No such controller here, or the word "max".
        return None


def _reclaimable(path: Path, names: tuple[str, ...]) -> int:
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            total += int(number) if name in names else 0
    return total


def _host_memory(path: Path) -> dict[str, int]:
    """What the kernel says about the host's memory, in bytes."""
    found = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    return found


def _smallest_mib(values: list[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return min(known) / _MIB if known else None
