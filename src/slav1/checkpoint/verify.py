"""Checks a checkpoint against its manifest, before anything of it is loaded."""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slav1.checkpoint.digests import Digest, digest_file
from slav1.checkpoint.errors import CheckpointDamagedError
from slav1.checkpoint.generations import Generations, manifest_file, read_generations
from slav1.checkpoint.manifest import Manifest, ManifestError

ITSELF = "."
"""Name of the only member of a checkpoint that is a single file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a checkpoint."""

    member: str
    """The file in it; ``.`` for the checkpoint itself."""

    check: str
    """``missing``, ``size``, ``digest``, ``manifest`` or ``unreadable``."""

    reason: str
    """What was expected and what was found."""

    def as_error(self, path: Path) -> CheckpointDamagedError:
        """The error to raise for it."""
        return CheckpointDamagedError(
            path=path, member=self.member, check=self.check, reason=self.reason
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a check found."""

    path: Path
    """The checkpoint."""

    manifest: Manifest | None = None
    """What it is; None if nothing is written about it: not ours, so not verified."""

    problems: tuple[Problem, ...] = ()
    """What is wrong; empty if it is whole."""

    notes: tuple[str, ...] = ()
    """What could not be checked, and what else is remarkable."""


def member_path(path: Path, member: str) -> Path:
    """Where a member of a checkpoint lies."""
    return path if member == ITSELF else path / member


def members_of(path: Path) -> list[str]:
    """The files of a checkpoint that lies at ``path``, manifest not counted, sorted."""
    if not path.is_dir():
        return [ITSELF]
    manifest = manifest_file(path)
    files = (file for file in path.rglob("*") if not file.is_dir() and file != manifest)
    return sorted(file.relative_to(path).as_posix() for file in files)


def verify_path(path: Path, *, from_medium: bool = True) -> Report:
    """Reads a whole checkpoint and compares it with its manifest. Not collective.

    Args:
        path: File or folder; a link is followed.
        from_medium: Whether to read past the page cache.
    """
    path = Path(os.path.realpath(path))
    try:
        generations = read_generations(path)
    except ManifestError as error:
        problem = Problem(member=ITSELF, check="manifest", reason=str(error))
        return Report(path=path, problems=(problem,))
    if generations is None:
        note = "There is no manifest: it was not saved by slav1, and nothing says what it was."
        return Report(path=path, notes=(note,))
    if not path.is_dir():
        return verify_single(path, generations, from_medium=from_medium)
    manifest = generations.new
    problems = check_members(path, manifest, manifest.members, from_medium=from_medium)
    return Report(
        path=path, manifest=manifest, problems=tuple(problems), notes=tuple(_notes(path, manifest))
    )


def verify_single(path: Path, generations: Generations, *, from_medium: bool) -> Report:
    """The same for a single file: finds the generation that lies under its name."""
    problems: list[Problem] = []
    for manifest in generations.manifests:
        found = check_members(path, manifest, manifest.members, from_medium=from_medium)
        if not found:
            return Report(path=path, manifest=manifest, notes=tuple(_notes(path, manifest)))
        problems = problems or found
    algorithm = generations.new.digest
    if generations.foreign is not None and path.exists():
        size = path.stat().st_size
        if size == generations.foreign.size:
            found_now = digest_file(path, algorithm, from_medium=from_medium)
            if found_now == generations.foreign:
                note = "It was there before the first save under its name: not verified."
                return Report(path=path, notes=(note,))
    return Report(path=path, manifest=generations.new, problems=tuple(problems))


def check_members(
    path: Path, manifest: Manifest, members: Iterable[str], *, from_medium: bool
) -> list[Problem]:
    """Compares some members of a checkpoint with its manifest."""
    found = (check_member(path, manifest, member, from_medium=from_medium) for member in members)
    return [problem for problem in found if problem is not None]


def check_sizes(path: Path, manifest: Manifest) -> list[Problem]:
    """What can be seen without reading: members that are missing or of another size."""
    found = (_check_size(path, name, member) for name, member in manifest.members.items())
    return [problem for problem in found if problem is not None]


def check_member(
    path: Path, manifest: Manifest, member: str, *, from_medium: bool
) -> Problem | None:
    """Compares one member with its manifest; None if it is as it was committed."""
    expected = manifest.members[member]
    if problem := _check_size(path, member, expected):
        return problem
    if not expected.root:
        return None
    try:
        found = digest_file(member_path(path, member), manifest.digest, from_medium=from_medium)
    except OSError as error:
        return Problem(member=member, check="unreadable", reason=f"It can't be read: {error}.")
    if found == expected:
        return None
    reason = (
        f"It has the right size and other bytes: {manifest.digest} {expected.root[:12]} was "
        f"committed for step {manifest.step}, {found.root[:12]} is there."
    )
    return Problem(member=member, check="digest", reason=reason)


def _check_size(path: Path, member: str, expected: Digest) -> Problem | None:
    try:
        status = member_path(path, member).stat()
    except (FileNotFoundError, NotADirectoryError):
        return Problem(member=member, check="missing", reason="It is not there.")
    except OSError as error:
        return Problem(member=member, check="unreadable", reason=f"It can't be read: {error}.")
    if not stat.S_ISREG(status.st_mode):
        return Problem(member=member, check="missing", reason="It is no file any more.")
    if status.st_size != expected.size:
        reason = f"It has {status.st_size} bytes; {expected.size} were committed."
        return Problem(member=member, check="size", reason=reason)
    return None


def _notes(path: Path, manifest: Manifest) -> list[str]:
    notes = []
    if any(not member.root for member in manifest.members.values()):
        notes.append("It was saved with verify: none, so only names and sizes were compared.")
    extra = sorted(set(members_of(path)) - set(manifest.members))
    if extra:
        some = ", ".join(extra[:3]) + (", ..." if len(extra) > 3 else "")
        notes.append(f"{len(extra)} files in it are not of the checkpoint: {some}.")
    return notes
