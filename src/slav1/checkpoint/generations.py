"""What says what a checkpoint is: the manifest in a folder, the two beside a single file.

A single file and its manifest are two names, and no disk renames two names at once. So the
manifest of a single file names two generations, the new one and the one that it replaces. It
is put in place first, then the file: whichever of the two contents lies under the name, it is
described.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slav1.checkpoint._names import MANIFEST, sidecar_of
from slav1.checkpoint.digests import Digest
from slav1.checkpoint.manifest import Manifest, ManifestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Generations:
    """What may lie under the name of a checkpoint."""

    new: Manifest
    """What was committed last, or was about to be."""

    previous: Manifest | None = None
    """What it replaces, if that was a checkpoint of ours."""

    foreign: Digest | None = None
    """What it replaces, if that was no checkpoint of ours."""

    def to_json(self) -> str:
        """Text for the file beside a single-file checkpoint."""
        previous = json.loads(self.previous.to_json()) if self.previous else None
        foreign = asdict(self.foreign) if self.foreign else None
        plain = {"new": json.loads(self.new.to_json()), "previous": previous, "foreign": foreign}
        return json.dumps(plain, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Generations":
        """Reads back what :meth:`to_json` wrote.

        Raises:
            ManifestError: If it is damaged.
        """
        try:
            plain: Any = json.loads(text)
            new, previous, foreign = plain["new"], plain["previous"], plain["foreign"]
            return cls(
                new=Manifest.from_plain(new),
                previous=Manifest.from_plain(previous) if previous else None,
                foreign=Digest(**foreign) if foreign else None,
            )
        except ManifestError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise ManifestError(f"The manifest can't be read: {error!r}.") from error

    @property
    def manifests(self) -> list[Manifest]:
        """The checkpoints among the generations, newest first."""
        return [self.new, self.previous] if self.previous else [self.new]


def manifest_file(path: Path) -> Path:
    """Where the manifest of a checkpoint lies, whether or not there is one."""
    return path / MANIFEST if path.is_dir() else sidecar_of(path)


def read_generations(path: Path) -> Generations | None:
    """What is written about a checkpoint.

    Returns:
        None if nothing is: it was not made by us, or is gone.

    Raises:
        ManifestError: If what is written is damaged or can't be read.
    """
    try:
        text = manifest_file(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ManifestError(f"The manifest can't be read: {error}.") from error
    if path.is_dir():
        return Generations(new=Manifest.from_json(text))
    return Generations.from_json(text)
