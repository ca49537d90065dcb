"""Clears away what dead writers left, the first time that a folder is used."""

from pathlib import Path

from slav1.checkpoint._commit import sweep
from slav1.checkpoint._line import Line


def sweep_once(line: Line, folder: Path) -> None:
    """Clears away what dead writers left in a folder, the first time it is used."""
    if not line.is_leader or folder in line.swept:
        return
    line.swept.add(folder)
    try:
        lost = sweep(folder, line.writer, line.disk)
    except OSError as error:
        line.peers.record("notice", f"Left-overs in {folder} could not be removed: {error}.")
        return
    for path, step in lost:
        line.peers.record(
            "notice",
            f"A save of {path} (step {step}) was in flight when its writer ended; it is lost.",
            step=step,
            path=str(path),
        )
