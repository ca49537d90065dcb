"""Crash safety: every state that a power cut may leave, and protocols that must be caught."""

from pathlib import Path
from typing import Any

import pytest

from slav1.checkpoint import _commit, _save
from slav1.checkpoint._disk import Disk, remove
from slav1.checkpoint._names import sidecar_of
from slav1.checkpoint.generations import Generations
from slav1.checkpoint.manifest import Manifest

from ._campaign import RUNS, NoExchange, over_one_file, over_one_folder, try_all
from ._crash_states import RecordingDisk


@pytest.mark.slow
@pytest.mark.parametrize("disk", [RecordingDisk, NoExchange])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_every_crash_leaves_the_last_commit(run: Any, disk: Any, tmp_path: Path) -> None:
    """
    Whatever a power cut leaves (here a fixed sample, in benchmarks all of it), what is
    chosen has the right bytes and is no older than the last save that was acknowledged.
    """
    outcome = try_all(tmp_path, run, disk(), share=0.1)

    assert outcome.violations == []
    assert outcome.num_states >= 10


class NeverFlushesFiles(RecordingDisk):
    """Wrong: a rename is taken for a commit although the contents were not flushed."""

    def fsync(self, path: Path) -> None:
        if path.is_dir():
            super().fsync(path)


class NeverFlushesFolders(RecordingDisk):
    """Wrong: a save is acknowledged before its new name is on the medium."""

    def fsync(self, path: Path) -> None:
        if not path.is_dir():
            super().fsync(path)


class FlushesFilesAfterTheRename(RecordingDisk):
    """Wrong: the right calls in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self._late: list[Path] = []

    def fsync(self, path: Path) -> None:
        if not path.is_dir() and ".sla-new" in str(path):
            self._late.append(path)
            return
        super().fsync(path)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        late, self._late = self._late, []
        for path in late:
            moved = Path(str(path).replace(str(old), str(new)))
            if moved.exists():
                super().fsync(moved)
            else:
                self._late.append(path)


@pytest.mark.parametrize("run", [over_one_file, over_one_folder])
@pytest.mark.parametrize(
    "disk", [NeverFlushesFiles, NeverFlushesFolders, FlushesFilesAfterTheRename]
)
def test_wrong_flushes_are_caught(run: Any, disk: Any, tmp_path: Path) -> None:
    """
    A protocol with a flush left out or put behind its rename fails the same judgement.
    """
    assert try_all(tmp_path, run, disk(), stop_at=1).violations


def test_manifest_after_the_file_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Putting a single file in place before what describes it fails the same judgement.
    """

    def wrong(staging: Path, path: Path, manifest: Manifest, present: Any, disk: Disk) -> None:
        sidecar = sidecar_of(staging)
        disk.write(sidecar, Generations(new=manifest).to_json().encode())
        disk.fsync(sidecar)
        disk.rename(staging, path)
        disk.fsync(path.parent)
        disk.rename(sidecar, sidecar_of(path))
        disk.fsync(path.parent)

    monkeypatch.setattr(_save, "commit_file", wrong)

    assert try_all(tmp_path, over_one_file, RecordingDisk(), stop_at=1).violations


def test_pruning_first_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Removing the old checkpoint before the new one is committed fails the same judgement.
    """
    right = _commit.commit_folder

    def wrong(staging: Path, path: Path, manifest: Manifest, spare: Path, disk: Disk) -> None:
        if path.exists():
            remove(disk, path)
            disk.fsync(path.parent)
        right(staging, path, manifest, spare, disk)

    monkeypatch.setattr(_save, "commit_folder", wrong)

    assert try_all(tmp_path, over_one_folder, RecordingDisk(), stop_at=1).violations
