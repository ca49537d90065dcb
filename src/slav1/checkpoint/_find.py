"""Finds the checkpoints of a run: by the folders that are known, and by the catalogue."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slav1.checkpoint._names import REJECTED, SIDECAR, recognise
from slav1.checkpoint.generations import Generations, read_generations
from slav1.checkpoint.manifest import ManifestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that is, or should be, a checkpoint of ours."""

    path: Path
    """Where it lies."""

    generations: Generations | None
    """What is written about it; None if that is damaged."""

    reason: str = ""
    """Why it can't be read, if it can't."""


def find_checkpoints(
    folders: Iterable[Path], run: str, *, ours: Iterable[Path] = ()
) -> list[Found]:
    """All checkpoints of a run that lie directly in some folders.

    Args:
        folders: Where to look; need not exist.
        run: Identity of the run; checkpoints of others are left alone.
        ours: Paths that the catalogue knows: a damaged one there is reported, elsewhere it
            may be anybody's.
    """
    known = {Path(path) for path in ours}
    candidates = dict.fromkeys(path for folder in folders for path in _candidates(folder))
    found = [_look(path) for path in candidates]
    return [one for one in found if one is not None and _is_of_run(one, run, known)]


def _candidates(folder: Path) -> list[Path]:
    try:
        entries = sorted(os.scandir(os.path.realpath(folder)), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    paths = [Path(entry.path) for entry in entries]
    return [path for path in paths if _may_be_one(path)]


def _may_be_one(path: Path) -> bool:
    if path.name.startswith(REJECTED) or path.name.endswith(SIDECAR) or path.is_symlink():
        return False
    return recognise(path) is None


def _look(path: Path) -> Found | None:
    try:
        generations = read_generations(path)
    except ManifestError as error:
        return Found(path=path, generations=None, reason=str(error))
    return Found(path=path, generations=generations) if generations else None


def _is_of_run(found: Found, run: str, known: set[Path]) -> bool:
    if found.generations is None:
        return found.path in known
    return any(manifest.run == run for manifest in found.generations.manifests)
