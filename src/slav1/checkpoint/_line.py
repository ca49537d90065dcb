"""What all parts of one run's checkpoint line share."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slav1.checkpoint._catalogue import Catalogue
from slav1.checkpoint._disk import Disk
from slav1.checkpoint._names import Writer
from slav1.checkpoint.manifest import Manifest
from slav1.checkpoint.peers import Peers
from slav1.contract.settings import CheckpointSettings

LEADER = 0
"""The rank that renames, removes and writes lines for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A checkpoint to go on from."""

    path: Path
    """Where it lies."""

    step: int
    """Last optimizer step that it contains."""

    manifest: Manifest
    """What it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A save that became a checkpoint."""

    path: Path
    """Where it lies."""

    step: int
    """Last optimizer step that it contains."""

    manifest: Manifest
    """What it is."""

    is_healthy: bool
    """Whether it may become the last good one."""

    doubt: str = ""
    """Why it is not healthy, in words."""

    seconds: Mapping[str, float]
    """How long each stage took on this rank: write, seal, commit and the like."""


@dataclass(slots=True, kw_only=True)
class Line:
    """One rank's end of the checkpoint line."""

    settings: CheckpointSettings
    peers: Peers
    disk: Disk
    run: str
    training: str
    """Name of the run folder."""

    attempt: int
    writer: Writer
    catalogue: Catalogue
    own_folder: Path
    """Where checkpoints lie that no host counts and removes."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while what is known is read or changed: a save may run in the background."""

    known: dict[Path, Manifest] = field(default_factory=dict)
    """Checkpoints of this run, by path."""

    proved: set[str] = field(default_factory=set)
    """Seals of those that this process has read back whole."""

    marks: dict[Path, tuple[tuple[int, ...], Manifest]] = field(default_factory=dict)
    """Single files that this process put in place: how they looked then, and what they are."""

    swept: set[Path] = field(default_factory=set)
    """Folders that were looked through for what dead writers left."""

    loaded_sequence: int = 0
    """Sequence of the checkpoint that this training was loaded from; 0 if it was not."""

    first_sequence: int | None = None
    """Sequence of the first that this training has saved; None before."""

    numbers: dict[str, int] = field(default_factory=dict)
    """How many saves, checks and choices there were: the same on all ranks."""

    @property
    def is_leader(self) -> bool:
        """Whether this rank acts for all."""
        return self.peers.rank == LEADER

    def number(self, what: str) -> int:
        """Counts a collective call, so that its meetings are told apart from others."""
        with self.lock:
            self.numbers[what] = self.numbers.get(what, 0) + 1
            return self.numbers[what]

    def newest_first(self) -> list[tuple[Path, Manifest]]:
        """The checkpoints of this run that are known, by sequence."""
        with self.lock:
            found = list(self.known.items())
        return sorted(found, key=lambda one: one[1].sequence, reverse=True)

    def is_of_this_training(self, manifest: Manifest) -> bool:
        """Whether training can have passed through a checkpoint: the same script may have left
        others before, or on another way from an older one."""
        is_own = self.first_sequence is not None and manifest.sequence >= self.first_sequence
        return is_own or manifest.sequence <= self.loaded_sequence

    def mark(self, path: Path, manifest: Manifest) -> None:
        """Remembers how a file looks that was just put in place."""
        self.marks[path] = _look(path), manifest

    def marked(self, path: Path) -> Manifest | None:
        """What a file is, if nobody has touched it since it was put in place."""
        if path not in self.marks or not path.is_file() or path.is_symlink():
            return None
        look, manifest = self.marks[path]
        return manifest if look == _look(path) else None

    def choice(self, path: Path, manifest: Manifest) -> Choice:
        """A checkpoint in the form in which it is handed out."""
        return Choice(path=path, step=manifest.step, manifest=manifest)


def _look(path: Path) -> tuple[int, ...]:
    status = path.lstat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
