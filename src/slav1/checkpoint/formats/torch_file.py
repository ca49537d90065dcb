"""Files of torch.save: the zip of today, which Lightning's files are too."""

from dataclasses import dataclass
from pathlib import Path

from slav1.checkpoint.formats import _torch_zip as torch_zip
from slav1.checkpoint.formats._notes import Examine, Notes
from slav1.checkpoint.formats._reading import Part, head_of

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".pkl")
"""Names that checkpoints of torch usually end with."""

_HEAD_BYTES = 1024


def examine_zip(part: Part, path: Path, notes: Notes, where: str = "") -> torch_zip.Content | None:
    """Looks at one zip of torch, alone in its file or one of many.

    Args:
        part: The zip.
        path: File that it lies in.
        notes: Where findings go.
        where: What to call it, with a space at its end; empty if it is the file.

    Returns:
        What it holds; None if it is damaged.
    """
    try:
        content = torch_zip.open_zip(part)
        if not content.has_checksums:
            notes.unchecked(path, "written without checksums (torch's set_crc32_options): bytes")
        elif path not in notes.proved:
            torch_zip.check_crcs(part, content)
    except torch_zip.TorchZipError as error:
        notes.damaged(path, f"{where}{error}")
        return None
    if notes.finite:
        from slav1.checkpoint.formats._numbers import num_non_finite

        for name in torch_zip.non_finite_tensors(part, content, num_non_finite):
            notes.damaged(path, f"{where}not finite: {name}")
    return content


def read_plain(path: Path) -> torch_zip.Content | None:
    """Reads what a file of torch says besides its tensors; None if it can't be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return torch_zip.open_zip(Part(file, 0, path.stat().st_size))
    except (OSError, torch_zip.TorchZipError):
        return None


@dataclass(frozen=True, slots=True)
class TorchFile:
    """A file written by ``torch.save``."""

    name: str = "torch.save file"

    def claims(self, path: Path) -> bool:
        if not path.is_file():
            return False
        head = head_of(path, _HEAD_BYTES)
        is_zip = head.startswith(torch_zip.MAGIC)
        # Torch writes its pickle first; that tells its zips from those of others.
        return (is_zip and (path.suffix in SUFFIXES or b"/data.pkl" in head)) or _ends_as_zip(path)

    def examine(self, path: Path, notes: Notes, examine: Examine) -> None:
        with notes.looking_at(path), path.open("rb", buffering=0) as file:
            content = examine_zip(Part(file, 0, path.stat().st_size), path, notes)
            if content is not None:
                notes.passed("structure")
                _count_checks(path, content, notes)


def _count_checks(path: Path, content: torch_zip.Content, notes: Notes) -> None:
    if content.has_checksums and path not in notes.proved:
        notes.passed("crc32")
    if notes.finite and not notes.is_damaged(path):
        notes.passed("finite")


def _ends_as_zip(path: Path) -> bool:
    """Whether a file whose first bytes are lost is still a zip at its end."""
    if path.suffix not in SUFFIXES:
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 22))
        return file.read(4) == b"PK\x05\x06"
