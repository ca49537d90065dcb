"""What a crash, a full disk and damage do to checkpoints: all of it, not the suite's sample.

    python benchmarks/checkpoint_crashes.py > page.md

Exits with 1 if anything that was acknowledged was lost, or any damage was not found.
"""

import argparse
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "slav1"))

from _machine import heading
from checkpoint._campaign import (
    RUNS,
    NoExchange,
    NoFlush,
    open_shelf,
    over_one_file,
    over_one_folder,
    payload,
    try_all,
)
from checkpoint._crash_states import RecordingDisk, wipe
from checkpoint.test_crash_states import (
    FlushesFilesAfterTheRename,
    NeverFlushesFiles,
    NeverFlushesFolders,
)

from slav1.checkpoint import CheckpointDamagedError, SaveFacts, SaveFailedError, Shelf
from slav1.checkpoint._disk import Disk
from slav1.checkpoint.verify import members_of

PR_SET_PDEATHSIG = 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--share", type=float, default=1.0, help="of the crash states")
    parser.add_argument("--folder", type=Path, help="on the disk to try; default: a temporary one")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="crashes-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(heading("Checkpoints under crashes, full disks and damage"))
    parts: list[tuple[str, Callable[[Path], Iterator[int]]]] = [
        ("Crash states", lambda root: crash_states(root, given.share)),
        ("Kills", lambda root: kills(root, given.kills)),
        ("Full disk", full_disk),
        ("Failing flush", failing_flush),
        ("Damage before the commit", damage_before),
        ("Damage after the commit", damage_after),
    ]
    num_bad = 0
    try:
        for title, part in parts:
            print(f"\n## {title}\n")
            root = folder / title.replace(" ", "-").lower()
            root.mkdir()
            num_bad += sum(part(root))
            sys.stdout.flush()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(num_bad > 0)


def crash_states(root: Path, share: float) -> Iterator[int]:
    print("| run | disk | states | lost or wrong |\n| --- | --- | --: | --: |")
    for disk in (RecordingDisk, NoExchange):
        for name, run in RUNS.items():
            found = try_all(root, run, disk(), share=share)
            print(f"| {name} | {disk.__name__} | {found.num_states} | {len(found.violations)} |")
            for one in found.violations[:5]:
                print(one, file=sys.stderr)
            yield len(found.violations)
    for wrong in (NeverFlushesFiles, NeverFlushesFolders, FlushesFilesAfterTheRename):
        for run in (over_one_file, over_one_folder):
            found = try_all(root, run, wrong(), stop_at=20)
            bad = f"stopped at {len(found.violations)}"
            name = f"wrong on purpose: {wrong.__name__}"
            print(f"| {run.__name__} | {name} | {found.num_states} | {bad} |")
            yield int(not found.violations)


# -- kills --------------------------------------------------------------------------------------


def kills(root: Path, num: int) -> Iterator[int]:
    draw = random.Random(0)
    acknowledged: dict[str, int] = {}
    lost, num_saves, num_in_flight = [], 0, 0
    for number in range(num):
        before = dict(acknowledged)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _save_for_ever(root, number, write)
        os.close(write)
        with os.fdopen(read, "rb") as told:
            told.readline()
            time.sleep(draw.uniform(0, 0.25))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for line in told:
                name, step = line.decode().split()
                acknowledged[name] = int(step)
                num_saves += 1
        num_in_flight += any(".sla-new" in path.name for path in root.rglob("*"))
        if found := _judge_kill(root, acknowledged or before, attempt=number + 1):
            lost.append(f"kill {number}: {found}")
    print(f"| kills | saves acknowledged | killed in a save | lost or wrong |\n{'| --: ' * 4}|")
    print(f"| {num} | {num_saves} | {num_in_flight} | {len(lost)} |")
    for one in lost[:5]:
        print(one, file=sys.stderr)
    yield len(lost)


def _save_for_ever(root: Path, number: int, told: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    shelf = open_shelf(root, Disk(), attempt=number + 1, keep=1)
    os.write(told, b"ready\n")
    step = 1000 * (number + 1)
    while True:
        for name in ("last.ckpt", "last", f"steps/{step + 3}.ckpt"):
            step += 1
            shelf.save(root / name, _writer(name, step), _facts(name, step))
            os.write(told, f"{name} {step}\n".encode())
        shelf.prune(root / "steps")


def _facts(name: str, step: int) -> SaveFacts:
    is_file = name.endswith(".ckpt")
    return SaveFacts(step=step, host="test", kind="replicated" if is_file else "sharded")


def _writer(name: str, step: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        if name.endswith(".ckpt"):
            path.write_bytes(payload(step))
            return
        (path / "parts").mkdir(parents=True)
        (path / "model.bin").write_bytes(payload(step, 0))
        (path / "parts" / "shard_0.bin").write_bytes(payload(step, 1))

    return write


def _judge_kill(root: Path, acknowledged: dict[str, int], attempt: int) -> str | None:
    if not acknowledged:
        return None
    from checkpoint._campaign import _judge_choice, _judge_name

    shelf = open_shelf(root, NoFlush(), attempt=attempt, max_attempts=1000)
    found = _judge_choice(shelf, max(acknowledged.values()))
    for name in ("last.ckpt", "last"):
        if name in acknowledged:
            found = found or _judge_name(shelf, root / name, acknowledged[name])
    left = [path.name for path in root.rglob(".*") if path.name.startswith((".sla", ".rejected"))]
    return found or (f"left behind: {left}" if left else None)


# -- full disk, failing flush -------------------------------------------------------------------


def full_disk(root: Path) -> Iterator[int]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", root], capture_output=True, check=False
    )
    if mounted.returncode:
        print(f"Not exercised: no file system can be mounted ({mounted.stderr.decode().strip()}).")
        return
    num, failed, bad = 0, 0, 0
    try:
        for room in range(0, 80 << 10, 2048):
            for name in ("last.ckpt", "last"):
                num += 1
                outcome = _save_with_room(root, name, room)
                failed += outcome == "failed"
                bad += outcome == "bad"
                wipe(root)
    finally:
        subprocess.run(["umount", root], check=True)
    print("| saves, each with 2 KiB more room | failed | old one lost or not usable |")
    print(f"{'| --: ' * 3}|\n| {num} | {failed} | {bad} |")
    yield bad + (failed == 0) + (failed == num)


def _save_with_room(root: Path, name: str, room: int) -> str:
    shelf = open_shelf(root, Disk(), attempt=1)
    shelf.save(root / name, _writer(name, 10), _facts(name, 10))
    _fill(root / "filler", room)
    outcome, expected = "saved", 20
    try:
        shelf.save(root / name, _writer(name, 20), _facts(name, 20))
    except SaveFailedError:
        outcome, expected = "failed", 10
    found = _judge_kill(root, {name: expected}, attempt=2)
    (root / "filler").unlink()
    again = open_shelf(root, Disk(), attempt=3)
    again.save(root / name, _writer(name, 30), _facts(name, 30))
    found = found or _judge_kill(root, {name: 30}, attempt=4)
    if found:
        print(f"{name} with {room} bytes: {found}", file=sys.stderr)
    return "bad" if found else outcome


def _fill(path: Path, room: int) -> None:
    free = os.statvfs(path.parent)
    with path.open("wb") as file:
        file.write(bytes(max(0, free.f_bavail * free.f_frsize - room)))


class FailingFlush(Disk):
    """A disk on which the n-th flush fails."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at
        self.failed = False

    def fsync(self, path: Path) -> None:
        self._left -= 1
        if self._left == 0:
            self.failed = True
            raise OSError(5, "Input/output error", str(path))
        super().fsync(path)


def failing_flush(root: Path) -> Iterator[int]:
    num, bad = 0, 0
    for name in ("last.ckpt", "last"):
        for at in range(1, 30):
            shelf = open_shelf(root, Disk(), attempt=1)
            shelf.save(root / name, _writer(name, 10), _facts(name, 10))
            disk = FailingFlush(at)
            failing = open_shelf(root, disk, attempt=1)
            was_refused = False
            try:
                failing.save(root / name, _writer(name, 20), _facts(name, 20))
            except SaveFailedError:
                was_refused = True
            num += disk.failed
            # A flush of the catalogue or of what is removed comes after the commit.
            if found := _judge_kill(root, {name: 10 if was_refused else 20}, attempt=2):
                print(f"{name}, flush {at}: {found}", file=sys.stderr)
                bad += 1
            wipe(root)
    print(
        f"| flushes failed | old one lost, or new one wrong |\n{'| --: ' * 2}|\n| {num} | {bad} |"
    )
    yield bad + (num == 0)


# -- damage -------------------------------------------------------------------------------------


class FlipsAfterFlush(Disk):
    """A disk whose medium changes one bit of one member."""

    def __init__(self, member: str) -> None:
        super().__init__()
        self._member = member

    def fsync(self, path: Path) -> None:
        super().fsync(path)
        if path.name == self._member or (path.is_file() and self._member == "."):
            time.sleep(0.03)  # what is in memory has been read by then
            _flip(path)


def damage_before(root: Path) -> Iterator[int]:
    num, found = 0, 0
    for name, member in (("a.ckpt", "."), ("a", "model.bin"), ("a", "shard_0.bin")):
        for _ in range(10):
            shelf = open_shelf(root, FlipsAfterFlush(member), attempt=1)
            num += 1
            try:
                shelf.save(root / name, _writer(name, 10), _facts(name, 10))
            except SaveFailedError as error:
                found += "reads back differently" in str(error)
            wipe(root)
    print(f"| bits flipped on the medium | found before the commit |\n{'| --: ' * 2}|")
    print(f"| {num} | {found} |")
    yield num - found


def damage_after(root: Path) -> Iterator[int]:
    print("| damage | members | found | next older chosen |\n| --- | --: | --: | --: |")
    for damage in (_flip, _cut, _empty, Path.unlink, _other_step, _zero_block):
        num, found, fell_back = 0, 0, 0
        for name in ("s20.ckpt", "s20"):
            for member in [*_members(root, name), "the manifest"]:
                num += 1
                shelf = _save_two(root, name)
                path = root / name
                manifest = (
                    path / "sla_manifest.json" if path.is_dir() else root / f"{name}.sla.json"
                )
                target = manifest if member == "the manifest" else path / member
                damage(target if member != "." else path)
                found += _is_damaged(shelf, path)
                choice = open_shelf(root, NoFlush(), attempt=2).choose()
                fell_back += choice is not None and choice.step == 10
                wipe(root)
        print(f"| {damage.__name__.strip('_')} | {num} | {found} | {fell_back} |")
        # A manifest that is gone is no damage that can be told: nothing says it was ours.
        yield 2 * num - found - fell_back - 2 * (damage is Path.unlink)


def _members(root: Path, name: str) -> list[str]:
    _save_two(root, name)
    members = members_of(root / name)
    wipe(root)
    return members


def _save_two(root: Path, name: str) -> Shelf:
    shelf = open_shelf(root, Disk(), attempt=1)
    older = name.replace("20", "10")
    shelf.save(root / older, _writer(older, 10), _facts(older, 10))
    shelf.save(root / name, _writer(name, 20), _facts(name, 20))
    return shelf


def _is_damaged(shelf: Shelf, path: Path) -> bool:
    try:
        shelf.check(path)
    except CheckpointDamagedError:
        return True
    return False


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.Random(len(data)).randrange(len(data))] ^= 1 << 3
    path.write_bytes(data)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _zero_block(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes(512) + data[512:])


def _other_step(path: Path) -> None:
    other = Path(str(path).replace("s20", "s10"))
    shutil.copy(other, path)


if __name__ == "__main__":
    sys.exit(main())
