"""What was found out about a checkpoint, and what could not be."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class NotACheckpointError(ValueError):
    """Something is not a checkpoint of any known form.

    Attributes:
        path: What was looked at.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is not a checkpoint: {reason}")
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about one file of a checkpoint."""

    file: str
    """The file, relative to the checkpoint's folder."""

    message: str
    """What is wrong, or what could not be checked, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found out about one checkpoint."""

    path: Path
    """The file or folder."""

    form: str
    """What it is, for example ``lightning file`` or ``accelerate folder``."""

    num_files: int
    """Files that were looked at."""

    num_bytes: int
    """Their length, in bytes."""

    damages: tuple[Finding, ...]
    """What is wrong; empty if nothing was found."""

    unchecked: tuple[Finding, ...]
    """What could not be checked, and why."""

    checks: Mapping[str, int]
    """How many files passed each kind of check, by its name: ``structure``, ``crc32``,
    ``digest``, ``finite``."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing was found to be wrong."""
        return not self.damages
