"""What proving a checkpoint costs: blocked time, a whole save, reading back.

    python benchmarks/checkpoint_speed.py --mebibytes 512 --rounds 9

Each round does every variant once, in turn; medians of the rounds and of their ratios.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _machine import heading, quantile

from slav1.checkpoint import Alone, SaveFacts, Shelf, verify_path
from slav1.checkpoint.digests import BLOCK_BYTES, CHUNK_BYTES, digest_file, new_hash
from slav1.checkpoint.snapshot import SnapshotBuffers, snapshot
from slav1.contract.settings import CheckpointSettings

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="on the disk to try; default: a temporary one")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="speed-"))
    folder.mkdir(parents=True, exist_ok=True)
    state = make_state(given.mebibytes)
    print(heading("What proving a checkpoint costs"))
    print(f"- State: {given.mebibytes} MiB in {len(flat(state))} tensors; {given.rounds} rounds\n")
    try:
        blocked(folder, state, given.mebibytes, given.rounds)
        whole_save(folder, state, given.mebibytes, given.rounds)
        verification(folder, state, given.mebibytes, given.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_state(mebibytes: int) -> dict[str, Any]:
    """Parameters and two moments of a model of blocks, as an optimizer keeps them."""
    state: dict[str, Any] = {"model": {}, "exp_avg": {}, "exp_avg_sq": {}}
    elements = mebibytes * MIB // 4 // 3
    block = 0
    while elements > 0:
        for name, most in (("w", 1 << 20), ("v", 1 << 18), ("bias", 1 << 10)):
            size = min(most, elements)
            for part in state.values():
                part[f"block{block}.{name}"] = torch.randn(size)
            elements -= size
            if elements <= 0:
                break
        block += 1
    return state


def flat(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {f"{part}.{name}": t for part, inner in state.items() for name, t in inner.items()}


def shelf_in(folder: Path, **settings: Any) -> Shelf:
    return Shelf(
        settings=CheckpointSettings(**settings),
        peers=Alone(),
        run_folder=folder / "run",
        attempt=0,
        run="speed",
    )


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def report(
    title: str, names: tuple[str, str], seconds: list[tuple[float, float]], mebibytes: int
) -> None:
    ratios = [second / first for first, second in seconds]
    print(f"## {title}\n\n| what | median (ms) | GiB/s |\n| --- | --: | --: |")
    for index, name in enumerate(names):
        middle = median(one[index] for one in seconds)
        print(f"| {name} | {middle * 1e3:.1f} | {mebibytes / 1024 / middle:.2f} |")
    low, high = quantile(ratios, 0.25), quantile(ratios, 0.75)
    print(f"\nRatio in pairs: **{median(ratios):.2f}** (quartiles {low:.2f} to {high:.2f})\n")


def blocked(folder: Path, state: dict[str, Any], mebibytes: int, rounds: int) -> None:
    """How long training waits for a background save, beside one copy of memory."""
    one = torch.empty(mebibytes * MIB // 4).normal_()
    other = torch.zeros_like(one)
    buffers = SnapshotBuffers()
    buffers.prepare(state)
    shelf = shelf_in(folder)
    seconds, whole = [], []
    for step in range(1, rounds + 1):
        copy_s = timed(lambda: other.copy_(one))

        def save(step: int = step) -> None:
            copy = snapshot(state, buffers)
            shelf.save_in_background(
                folder / "back.ckpt",
                lambda path: torch.save(copy, path),
                SaveFacts(step=step, host="speed", kind="replicated", tensors=flat(copy)),
            )

        start = time.perf_counter()
        save()
        seconds.append((copy_s, time.perf_counter() - start))
        shelf.drain(600)
        whole.append(time.perf_counter() - start)
    names = ("one copy of as many bytes", "training waits for the save")
    report("Blocked time of a background save", names, seconds, mebibytes)
    print(f"The whole save took {median(whole):.2f} s (median) behind it.\n")


def whole_save(folder: Path, state: dict[str, Any], mebibytes: int, rounds: int) -> None:
    """A save at level medium beside torch.save and a flush of the same state."""
    for level in ("medium", "content"):
        shelf = shelf_in(folder, verify=level)
        seconds = []
        for step in range(rounds):
            state["model"]["block0.w"][0] = float(step)
            plain = folder / f"plain{step % 2}.ckpt"
            plain_s = timed(partial(plain_save, plain, state))
            facts = SaveFacts(step=step, host="speed", kind="replicated", tensors=flat(state))
            ours = folder / f"ours{step % 2}.ckpt"
            ours_s = timed(partial(shelf.save, ours, partial(torch.save, state), facts))
            seconds.append((plain_s, ours_s))
        names = ("torch.save, fsync, rename, fsync", f"save, verified at level {level}")
        report(f"A whole save, level {level}", names, seconds, mebibytes)


def plain_save(path: Path, state: dict[str, Any]) -> None:
    """What a careful script does by itself."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    for file in (part, path.parent):
        descriptor = os.open(file, os.O_RDONLY)
        if file == part:
            os.fsync(descriptor)
            part.replace(path)
        else:
            os.fsync(descriptor)
        os.close(descriptor)


def verification(folder: Path, state: dict[str, Any], mebibytes: int, rounds: int) -> None:
    """Verifying beside reading alone and hashing alone, whichever is slower."""
    shelf = shelf_in(folder)
    path = folder / "ours.ckpt"
    shelf.save(
        path,
        lambda part: torch.save(state, part),
        SaveFacts(step=1, host="speed", kind="replicated"),
    )
    size = path.stat().st_size
    for algorithm in ("xxh3", "sha256"):
        seconds = []
        for _ in range(rounds):
            read_s = timed(lambda: read_only(path))
            hash_s = hash_only(size, algorithm)
            if algorithm == "xxh3":
                ours_s = timed(lambda: verify_path(path))
            else:
                ours_s = timed(lambda: digest_file(path, "sha256", from_medium=True))
            seconds.append((max(read_s, hash_s), ours_s))
        names = ("the slower of reading alone and hashing alone", f"verifying, {algorithm}")
        report(f"Reading back and verifying, {algorithm}", names, seconds, mebibytes)
        speeds = [first / second for first, second in seconds]
        print(f"That is {median(speeds) * 100:.0f} % of the slower one's speed.\n")


def read_only(path: Path) -> None:
    """The same reads with the same threads, and nothing done with them."""
    import slav1.checkpoint.digests as module

    class Nothing:
        def update(self, data: object) -> None: ...

        def digest(self) -> bytes:
            return b""

        def hexdigest(self) -> str:
            return ""

    right = module._NEW["xxh3"]
    module._NEW["xxh3"] = Nothing
    try:
        digest_file(path, from_medium=True)
    finally:
        module._NEW["xxh3"] = right


def hash_only(size: int, algorithm: Any) -> float:
    """As many bytes from memory, in as many threads."""
    from concurrent.futures import ThreadPoolExecutor

    from slav1.checkpoint.digests import _num_threads

    num = _num_threads()
    chunk = memoryview(bytearray(os.urandom(BLOCK_BYTES) * (CHUNK_BYTES // BLOCK_BYTES)))

    def work() -> None:
        for _ in range(max(1, size // CHUNK_BYTES // num)):
            new_hash(algorithm).update(chunk)

    with ThreadPoolExecutor(num) as pool:
        start = time.perf_counter()
        for done in [pool.submit(work) for _ in range(num)]:
            done.result()
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
