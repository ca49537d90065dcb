"""The commit: the moment at which something that was written becomes a checkpoint."""

import contextlib
import os
from pathlib import Path

from slav1.checkpoint._disk import Disk, remove
from slav1.checkpoint._names import (
    MANIFEST,
    SIDECAR,
    Writer,
    beside,
    recognise,
    rejected_name,
    sidecar_of,
)
from slav1.checkpoint._seal import folders_of
from slav1.checkpoint.digests import Digest, digest_file
from slav1.checkpoint.formats.examination import NotACheckpointError
from slav1.checkpoint.formats.examine import examine
from slav1.checkpoint.generations import Generations, read_generations
from slav1.checkpoint.manifest import Manifest, ManifestError
from slav1.checkpoint.verify import verify_single
from slav1.checkpoint.workshop import workshop_of


def commit_folder(staging: Path, path: Path, manifest: Manifest, spare: Path, disk: Disk) -> None:
    """Gives a sealed folder its final name, manifest inside.

    Args:
        staging: The folder, all its files flushed.
        path: Its final name; what lies there is replaced.
        manifest: What it is.
        spare: Free name for what is replaced, where names can't be swapped in one step.
        disk: Where they lie.
    """
    disk.write(staging / MANIFEST, manifest.to_json().encode())
    disk.fsync(staging / MANIFEST)
    for folder in folders_of(staging, list(manifest.members)):
        disk.fsync(folder)
    if not path.exists() and not path.is_symlink():
        disk.rename(staging, path)
        _flush_names(path, staging, disk)
        return
    _replace(staging, path, spare, disk)


def commit_file(
    staging: Path,
    path: Path,
    manifest: Manifest,
    present: Manifest | Digest | None,
    disk: Disk,
) -> None:
    """Gives a sealed file its final name, manifest beside it.

    Args:
        staging: The file, flushed.
        path: Its final name; what lies there is replaced.
        manifest: What it is.
        present: What lies under the name now; see :func:`what_lies_at`.
        disk: Where they lie.

    Raises:
        IsADirectoryError: If a folder has the name that is no checkpoint.
    """
    is_folder = path.is_dir() and not path.is_symlink()
    if is_folder and not _is_checkpoint(path):
        raise IsADirectoryError(
            f"{path} is a folder and no checkpoint; a single file can't take its name."
        )
    generations = Generations(
        new=manifest,
        previous=present if isinstance(present, Manifest) else None,
        foreign=present if isinstance(present, Digest) else None,
    )
    sidecar = sidecar_of(staging)
    disk.write(sidecar, generations.to_json().encode())
    disk.fsync(sidecar)
    disk.rename(sidecar, sidecar_of(path))
    _flush_names(path, staging, disk)
    if is_folder:
        _replace_folder(staging, path, disk)
        return
    disk.rename(staging, path)
    _flush_names(path, staging, disk)


def what_lies_at(path: Path, manifest: Manifest) -> Manifest | Digest | None:
    """What a single file that is about to be replaced is, by its contents.

    Returns:
        Its manifest if it is a checkpoint of ours and whole, its digest if it was never one,
        None if there is nothing, or nothing but damage.
    """
    if path.is_symlink() or not path.is_file():
        return None
    try:
        generations = read_generations(path)
    except ManifestError:
        return None
    if generations is None:
        return digest_file(path, manifest.digest)
    report = verify_single(path, generations, from_medium=False)
    if report.problems:
        return None
    return report.manifest or digest_file(path, manifest.digest)


def set_aside(path: Path, disk: Disk) -> Path:
    """Renames a checkpoint so that nobody takes it for a good one; deletes nothing.

    Returns:
        Its new name.
    """
    aside = rejected_name(path)
    sidecar = sidecar_of(path)
    disk.rename(path, aside)
    if sidecar.exists():
        disk.rename(sidecar, sidecar_of(aside))
    _flush_names(aside, path, disk)
    return aside


def discard(path: Path, spare: Path, disk: Disk) -> None:
    """Removes a checkpoint that may go. A crash half-way leaves nothing that looks like one."""
    disk.rename(path, spare)
    _flush_names(spare, path, disk)
    remove(disk, spare)
    sidecar = sidecar_of(path)
    if sidecar.exists():
        disk.unlink(sidecar)
    disk.fsync(path.parent)


def sweep(folder: Path, me: Writer, disk: Disk) -> list[tuple[Path, int]]:
    """Clears away what dead writers left beside the checkpoints of a folder.

    What they were making is removed unread. What they were replacing goes back to its name
    if nothing has taken it, since it may be all there is.

    Returns:
        The saves that were in flight and are lost: target and step.
    """
    places = [place for place in (folder, workshop_of(folder)) if place.is_dir()]
    found = [recognise(path) for place in places for path in sorted(place.iterdir())]
    gone = [left for left in found if left is not None and left.writer.is_gone(me)]
    if gone:
        # A dead writer may not have come to flush the name of what it had just committed.
        disk.fsync(folder)
    lost = []
    for left in gone:
        path = left.path
        is_manifest = path.name.endswith(SIDECAR) and not path.is_dir()
        if left.what == "old" and not is_manifest and not left.target.exists():
            disk.rename(path, left.target)
            disk.fsync(folder)
            continue
        if left.what == "new" and not is_manifest:
            lost.append((left.target, left.step))
        # Somebody else may sweep the same folder.
        with contextlib.suppress(FileNotFoundError):
            if left.what == "old" and not is_manifest:
                _carry_over(path, left.target, disk)
            remove(disk, path)
    return lost


def _is_checkpoint(folder: Path) -> bool:
    try:
        examine(folder)
    except NotACheckpointError:
        return False
    return True


def _replace_folder(staging: Path, path: Path, disk: Disk) -> None:
    left = recognise(staging)
    assert left is not None
    _replace(staging, path, beside(path, "old", left.writer, 0, left.step), disk)


def _replace(staging: Path, path: Path, spare: Path, disk: Disk) -> None:
    """Puts what was made in the place of a folder, and removes that."""
    # Under this name first, so that a start after a crash knows that others' files may be in it.
    disk.rename(staging, spare)
    is_done = False
    try:
        is_done = disk.exchange(spare, path)
    finally:
        if not is_done:
            disk.rename(spare, staging)
    if not is_done:
        _rename_twice(staging, path, spare, disk)
    _flush_names(path, spare, disk)
    _carry_over(spare, path, disk)
    # The successor stands. What can't be removed now is recognised and removed by a later start.
    with contextlib.suppress(OSError):
        remove(disk, spare)
        disk.fsync(path.parent)


def _carry_over(old: Path, path: Path, disk: Disk) -> None:
    """Keeps what others have put into a folder that is replaced: it is no part of the checkpoint,
    and a host that writes into a folder leaves it there too."""
    if old.is_symlink() or not (old.is_dir() and path.is_dir()):
        return
    try:
        replaced = {
            Path(name).parts[0]
            for name in Manifest.from_json((old / MANIFEST).read_bytes()).members
        }
    except (OSError, ManifestError):
        replaced = set()
    others = [
        one
        for one in sorted(old.iterdir())
        if one.name not in replaced and not os.path.lexists(path / one.name)
    ]
    for one in others:
        disk.rename(one, path / one.name)
    if others:
        disk.fsync(path)


def _rename_twice(staging: Path, path: Path, spare: Path, disk: Disk) -> None:
    # Between the two renames nothing has the final name: a start then finds `spare`.
    disk.rename(path, spare)
    try:
        _flush_names(spare, path, disk)
        disk.rename(staging, path)
    except OSError:
        disk.rename(spare, path)
        raise


def _flush_names(to: Path, source: Path, disk: Disk) -> None:
    """Makes a rename last: first where the name is now, then where it was."""
    disk.fsync(to.parent)
    if source.parent != to.parent:
        disk.fsync(source.parent)
