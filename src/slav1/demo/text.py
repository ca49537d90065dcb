"""Real text that every machine with Python has: the standard library's own source."""

import importlib.util
import string
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

ALPHABET = string.printable[:95] + "\n"
"""Every character the model knows; any other is read as a question mark."""

# Named, not searched for: the same files on every machine with the same Python.
MODULES = (
    "argparse",
    "ast",
    "calendar",
    "configparser",
    "datetime",
    "difflib",
    "doctest",
    "fractions",
    "heapq",
    "inspect",
    "mailbox",
    "optparse",
    "pdb",
    "pickle",
    "random",
    "shutil",
    "statistics",
    "subprocess",
    "tarfile",
    "textwrap",
    "threading",
    "typing",
    "uuid",
    "zipfile",
)


def source_files() -> list[Path]:
    """Finds the source files of ``MODULES`` without importing them.

    Returns:
        The files that are there, in the order of ``MODULES``.

    Raises:
        FileNotFoundError: If this Python comes without its sources.
    """
    specs = [importlib.util.find_spec(module) for module in MODULES]
    paths = [Path(spec.origin) for spec in specs if spec is not None and spec.origin is not None]
    found = [path for path in paths if path.suffix == ".py" and path.is_file()]
    if not found:
        raise FileNotFoundError(
            "The demo trains on the source files of the standard library, and this Python has "
            "none of them. Use a Python that was installed with its .py files."
        )
    return found


def source_text() -> str:
    """Reads ``source_files()`` as one text, about 1.5 million characters."""
    return "".join(path.read_text(encoding="utf-8") for path in source_files())


def encode(text: str) -> Tensor:
    """Numbers the characters of a text.

    Args:
        text: Any text.

    Returns:
        Places in ``ALPHABET``; shape ``(characters,)``, int64.
    """
    known = {ord(character): place for place, character in enumerate(ALPHABET)}
    places = bytes(known.get(code, known[ord("?")]) for code in range(256))
    # Latin-1 has one byte a character, so that the table above does all the work in C.
    as_bytes = bytearray(text.encode("latin-1", "replace").translate(places))
    return torch.frombuffer(as_bytes, dtype=torch.uint8).long()


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """A text cut into pieces of equal length, each with the characters that follow."""

    def __init__(self, text: str, *, length: int) -> None:
        self._characters = encode(text)
        self._length = length

    def __len__(self) -> int:
        return (len(self._characters) - 1) // self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self._length
        piece = self._characters[start : start + self._length + 1]
        return piece[:-1], piece[1:]
