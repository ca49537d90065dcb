"""Real kills and a really full disk; a small fixed sample of benchmarks/checkpoint_crashes.py."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slav1.checkpoint import Alone, SaveFailedError

from ._shelves import facts, file_writer, folder_writer, shelf_of


def steps_in(path: Path) -> set[int]:
    """The step that each file of a checkpoint is full of."""
    files = [path] if path.is_file() else path.glob("*.bin")
    return {file.read_bytes()[0] for file in files}


@pytest.mark.slow
def test_kills_at_any_moment(tmp_path: Path) -> None:
    """
    PC-03 (ii): killed at 12 random moments of saving over the same file and the same folder,
    a run always finds all of the last acknowledged step or of a later one, and no left-overs.
    """
    draw = random.Random(0)
    ck = tmp_path / "ck"
    acknowledged = {"last.ckpt": 0, "last": 0}
    for number in range(12):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            shelf = shelf_of(tmp_path, Alone(), attempt=number, max_attempts=1000)
            os.write(write, b"ready\n")
            for step in range(20 * number + 1, 20 * number + 21):
                shelf.save(ck / "last.ckpt", file_writer(step), facts(step))
                os.write(write, f"last.ckpt {step}\n".encode())
                shelf.save(ck / "last", folder_writer(step), facts(step, "sharded"))
                os.write(write, f"last {step}\n".encode())
            time.sleep(30)
            os._exit(1)
        os.close(write)
        with os.fdopen(read) as told:
            told.readline()
            time.sleep(draw.uniform(0, 0.15))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for line in told:
                name, step = line.split()
                acknowledged[name] = int(step)

        shelf = shelf_of(tmp_path, Alone(), attempt=number, max_attempts=1000)
        choice = shelf.choose()
        for name, step in acknowledged.items():
            if step:
                manifest = shelf.check(ck / name)
                assert manifest is not None and manifest.step >= step
                assert steps_in(ck / name) == {manifest.step}
        if any(acknowledged.values()):
            assert choice is not None and choice.step >= max(acknowledged.values())
            left = {path.name for path in ck.iterdir()}
            assert left <= {"last", "last.ckpt", "last.ckpt.sla.json"}
    assert max(acknowledged.values()) > 0, "no save ended before any kill: nothing was tried"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("room", [0, 4096, 12288, 20480])
def test_full_disk(room: int, small_disk: Path) -> None:
    """
    PC-03 (i): with so many bytes free that the write, the manifest or nothing finds room, a
    save fails with the reason or succeeds, what was there is whole, and the next one with
    room works.
    """
    shelf = shelf_of(small_disk, Alone())
    path = small_disk / "ck" / "last.ckpt"
    shelf.save(path, file_writer(1), facts(1))
    free = os.statvfs(small_disk)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - room)))

    expected = 2 if room == 20480 else 1
    if expected == 2:
        shelf.save(path, file_writer(2), facts(2))
    else:
        with pytest.raises(SaveFailedError, match="No space left"):
            shelf.save(path, file_writer(2), facts(2))

    manifest = shelf.check(path)
    assert manifest is not None and manifest.step == expected
    assert steps_in(path) == {expected}
    filler.unlink()
    assert shelf.save(path, file_writer(3), facts(3)).step == 3
