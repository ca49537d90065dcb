"""Proves that written files are on the medium: digest, flush, read back, compare."""

import errno
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from slav1.checkpoint._disk import Disk, usual_mode
from slav1.checkpoint.digests import Algorithm, Digest, digest_file

Level = Literal["none", "bytes", "medium", "content"]

# How the formats of the hosts put a rank into the name of a file.
_RANK = re.compile(r"(?:__|rank_|rank|states_|fsdp_)(\d+)")

READS_BACK_DIFFERENTLY = "reads back differently from what was written"
"""What a failed save says when the medium holds other bytes than it was given."""


def seal(path: Path, level: Level, algorithm: Algorithm, disk: Disk) -> Digest:
    """Makes sure that a file survives, and returns what it contains.

    Raises:
        OSError: If it can't be flushed or read, or if the medium gives back other bytes than
            the kernel holds.
    """
    usual_mode(path)
    if level == "none":
        disk.fsync(path)
        return Digest(size=path.stat().st_size, root="")
    # The digest is of what the writer handed over: from the page cache, while it is flushed.
    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(disk.fsync, path)
        in_memory = digest_file(path, algorithm)
        flushed.result()
    disk.is_flushed(path)
    if level == "bytes":
        return in_memory
    on_medium = digest_file(path, algorithm, from_medium=True)
    if on_medium != in_memory:
        raise OSError(
            errno.EIO,
            f"{READS_BACK_DIFFERENTLY}: {algorithm} {in_memory.root[:12]} of "
            f"{in_memory.size} bytes became {on_medium.root[:12]} of {on_medium.size}. Look for a "
            "failing disk, or for another process that writes to this folder",
            str(path),
        )
    return in_memory


def share_out(
    sizes: Mapping[str, int], workers: Sequence[int], hosts: Mapping[int, str]
) -> dict[str, int]:
    """Which rank reads which file: all ranks find the same answer.

    On several machines a file goes to the rank that its name speaks of, if it speaks of one,
    since only the machine that wrote it holds it in memory. Otherwise sizes are evened out.

    Args:
        sizes: Bytes by file.
        workers: Ranks that see the files, at least one.
        hosts: Machine by rank.
    """
    several = len({hosts[rank] for rank in workers}) > 1
    load = dict.fromkeys(workers, 0)
    shares: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        spoken_of = _RANK.search(name) if several else None
        rank = int(spoken_of[1]) if spoken_of else -1
        if rank not in load:
            rank = min(load, key=lambda one: (load[one], one))
        load[rank] += sizes[name]
        shares[name] = rank
    return shares


def flush_own_machine(
    path: Path, names: Sequence[str], rank: int, workers: Sequence[int], hosts: Mapping[int, str]
) -> list[str]:
    """The files that a rank flushes beside those it reads, for its machine.

    A flush acts on the machine that holds unwritten pages, and no name says for sure which
    that is; flushing a clean file costs nothing.
    """
    if len({hosts[one] for one in workers}) == 1:
        return []
    near = [one for one in workers if hosts[one] == hosts[rank]]
    return [name for index, name in enumerate(names) if near[index % len(near)] == rank]


def folders_of(path: Path, members: Sequence[str]) -> list[Path]:
    """Every folder of a checkpoint that is a folder, innermost first."""
    found = {path}
    for member in members:
        found |= {path / parent for parent in Path(member).parents}
    for folder, _, _ in os.walk(path):
        found.add(Path(folder))
    return sorted(found, key=lambda folder: (-len(folder.parts), str(folder)))
