"""Workshops: where checkpoints are made for a host that takes all in its folder for one."""

from pathlib import Path

WORKSHOP = ".sla-"
"""What the name of a folder's workshop begins with."""


def workshop_of(folder: Path) -> Path:
    """Where the checkpoints of a folder are made, and rejected ones lie, if it is there.

    Elsewhere these lie among the checkpoints. Whoever saves for such a host makes the
    workshop.
    """
    return folder.with_name(f"{WORKSHOP}{folder.name}")


def home_of(folder: Path) -> Path:
    """The folder whose workshop this is; itself if it is none."""
    if not folder.name.startswith(WORKSHOP):
        return folder
    return folder.with_name(folder.name.removeprefix(WORKSHOP))
