"""How fast ``sla verify`` looks at a checkpoint, against the disk and the checksum alone."""

import argparse
import os
import random
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from statistics import median

from _machine import heading

from slav1.checkpoint._names import sidecar_of
from slav1.checkpoint.digests import digest_file
from slav1.checkpoint.formats import examine
from slav1.checkpoint.generations import Generations
from slav1.checkpoint.manifest import Manifest

GB = 1e9
PIECE_BYTES = 4 << 20


def read_all(path: Path) -> None:
    """The disk alone: the whole file, past the page cache, nothing done with it."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.readinto(buffer):
            pass


def checksum_all(path: Path) -> None:
    """The checksum alone: as many bytes as the file has, from memory."""
    piece = bytes(PIECE_BYTES)
    for _ in range(path.stat().st_size // PIECE_BYTES):
        zlib.crc32(piece)


def look(path: Path, *, finite: bool = False) -> None:
    """What the command does."""
    assert examine(path, finite=finite).is_whole


def give_manifest(path: Path) -> None:
    manifest = Manifest(
        run="r",
        host="h",
        kind="replicated",
        step=3,
        sequence=1,
        attempt=0,
        world_size=1,
        is_healthy=True,
        verify="medium",
        digest="xxh3",
        members={".": digest_file(path)},
    )
    sidecar_of(path).write_text(Generations(new=manifest).to_json())


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    print(heading("sla verify"))
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        foreign, ours = Path(name) / "foreign.pt", Path(name) / "ours.pt"
        tensors = {str(i): torch.rand(16 << 18) for i in range(given.mib // 16)}
        for path in (foreign, ours):
            torch.save(tensors, path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
        give_manifest(ours)
        cases: dict[str, Callable[[], None]] = {
            "reading alone": lambda: read_all(foreign),
            "CRC-32 alone, in memory": lambda: checksum_all(foreign),
            "verify, torch's own checksums": lambda: look(foreign),
            "verify, our digests": lambda: look(ours),
            "verify --finite": lambda: look(foreign, finite=True),
        }
        seconds: dict[str, list[float]] = {case: [] for case in cases}
        for number in range(given.repeats):
            # A disk of a virtual machine has a burst to spend: who comes first gets most.
            for case, work in random.Random(number).sample(list(cases.items()), len(cases)):
                began = time.perf_counter()
                work()
                seconds[case].append(time.perf_counter() - began)
        num_bytes = foreign.stat().st_size
    print("| case | GB/s, median | best |")
    print("| --- | --- | --- |")
    for case, taken in seconds.items():
        print(
            f"| {case} | {num_bytes / GB / median(taken):.2f} | {num_bytes / GB / min(taken):.2f} |"
        )


if __name__ == "__main__":
    main()
