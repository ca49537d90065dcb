"""What tests of the shelf share: a shelf of some ranks, and simple states to save."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from slav1.checkpoint import SaveFacts, Shelf
from slav1.contract.settings import CheckpointSettings

RUN = "job"


def shelf_of(root: Path, peers: Any, **more: Any) -> Shelf:
    """A shelf of the run ``job`` with its checkpoints in ``root / "ck"``."""
    names = ("disk", "attempt", "run", "run_folder")
    given = {name: more.pop(name) for name in names if name in more}
    settings = CheckpointSettings(**{"limit_s": 20.0, **more})
    return Shelf(
        settings=settings,
        peers=peers,
        roots=[root / "ck"],
        **{"run_folder": root / "run-1", "attempt": 0, "run": RUN, **given},
    )


def facts(step: int, kind: Any = "replicated", **more: Any) -> SaveFacts:
    return SaveFacts(step=step, host="test", kind=kind, **more)


def file_writer(step: int, rank: int = 0) -> Callable[[Path], None]:
    """Rank 0 writes one file, 9 KB of the step's number."""

    def write(path: Path) -> None:
        if rank == 0:
            path.write_bytes(bytes([step % 256]) * 9000)

    return write


def folder_writer(step: int, rank: int = 0) -> Callable[[Path], None]:
    """Every rank writes its shard into one folder."""

    def write(path: Path) -> None:
        path.mkdir(exist_ok=True)
        (path / f"shard_{rank}.bin").write_bytes(bytes([step % 256, rank]) * 4500)

    return write


def save_folders(shelf: Shelf, root: Path, steps: list[int], rank: int = 0) -> None:
    for step in steps:
        path = root / "ck" / f"step-{step}"
        shelf.save(path, folder_writer(step, rank), facts(step, "sharded"))


def bytes_below(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
