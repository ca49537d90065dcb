"""What slowing background checkpoint writes is worth to a reader of the same disk."""

import argparse
import mmap
import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from _machine import heading, quantile

from slav1.checkpoint import throttle
from slav1.checkpoint.throttle import Means, Throttle, Way, way_for
from slav1.coordinator.throttling import THROTTLED_PERCENT

READ_BYTES = 64 << 10
MIB = 1 << 20
ALONE = "reader alone"


def read_at_random(path: str, stop: Any, out: Any) -> None:
    """The foreground: batches read from a data file, past the page cache, one after another."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    blocks = os.fstat(file).st_size // READ_BYTES
    buffer = mmap.mmap(-1, READ_BYTES)
    rng = random.Random(0)
    taken = []
    while not stop.is_set():
        began = time.perf_counter()
        os.preadv(file, [buffer], rng.randrange(blocks) * READ_BYTES)
        taken.append(time.perf_counter() - began)
    out.put(taken)


def write_once(folder: Path, num_bytes: int, slowing: Throttle) -> float:
    """The background: a file is written and flushed as a checkpoint is; returns MiB/s."""
    piece = os.urandom(8 * MIB)
    path = folder / "checkpoint"
    began = time.perf_counter()
    with slowing.in_background(folder), path.open("wb") as file:
        for _ in range(num_bytes // len(piece)):
            file.write(piece)
        file.flush()
        slowing.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return num_bytes / MIB / seconds


class Run:
    """Writes beside a reader, throttled and not, by one writer that learns its usual speed."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self.folder, self.num_bytes = folder, num_bytes
        self.percent = 100
        self.slowing = Throttle(lambda: self.percent)

    def go(self, means: Means | None, *, writes: bool = True) -> tuple[float, list[float]]:
        """One write beside a reader; returns the writer's MiB/s and the reader's seconds."""
        stop, out = multiprocessing.Event(), multiprocessing.Queue()
        data = str(self.folder / "data")
        reader = multiprocessing.Process(target=read_at_random, args=(data, stop, out))
        reader.start()
        time.sleep(0.3)
        self.percent = 100 if means is None else THROTTLED_PERCENT
        if means is not None:
            throttle.way_for = lambda _: Way(means=means, why="for the benchmark")
        speed = 0.0
        if writes:
            speed = write_once(self.folder, self.num_bytes, self.slowing)
        else:
            time.sleep(1.5)
        stop.set()
        taken = out.get(timeout=60)
        reader.join(timeout=60)
        return speed, taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="size of each write")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="a folder on the disk")
    given = parser.parse_args()
    print(heading("Throttled background checkpoint writes"))
    cases: dict[str, Means | None] = {
        ALONE: None,
        "writer not throttled": None,
        "rate limit, 60 %": Means.RATE,
        "idle I/O priority of the writer": Means.PRIORITY,
    }
    found: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        print(f"Means chosen by itself here: {way_for(folder)}\n")
        (folder / "data").write_bytes(os.urandom(256 * MIB))
        os.sync()
        run = Run(folder, given.mib * MIB)
        run.go(None)
        for number in range(given.repeats):
            # A disk of a virtual machine has a burst to spend: who comes first gets most.
            for case, means in random.Random(number).sample(list(cases.items()), len(cases)):
                time.sleep(2.0)
                found[case].append(run.go(means, writes=case != ALONE))
    print("| case | writer MiB/s | reader MiB/s | read p50 ms | read p99 ms |")
    print("| --- | --- | --- | --- | --- |")
    for case, runs in found.items():
        writer = median(speed for speed, _ in runs)
        reads = median(READ_BYTES / MIB * len(taken) / sum(taken) for _, taken in runs)
        p50 = median(quantile(taken, 0.5) for _, taken in runs) * 1000
        p99 = median(quantile(taken, 0.99) for _, taken in runs) * 1000
        print(f"| {case} | {writer:.0f} | {reads:.1f} | {p50:.2f} | {p99:.2f} |")


if __name__ == "__main__":
    main()
