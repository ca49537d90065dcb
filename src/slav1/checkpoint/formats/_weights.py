"""Weights in several files: an index that says which file holds which tensor."""

import json
from collections.abc import Iterable
from pathlib import Path

from slav1.checkpoint.formats._notes import Examine, Notes
from slav1.checkpoint.formats._reading import read_small
from slav1.checkpoint.formats.safetensors_file import SafetensorsError, read_header
from slav1.checkpoint.formats.torch_file import read_plain

INDEX_SUFFIX = ".index.json"


def examine_index(path: Path, notes: Notes, examine: Examine) -> None:
    """Looks at an index and at all files it names.

    Args:
        path: The index, ``*.safetensors.index.json`` or ``*.bin.index.json``.
        notes: Where findings go.
        examine: Looks at each file.
    """
    with notes.looking_at(path):
        try:
            weight_map = json.loads(read_small(path))["weight_map"]
            names_of: dict[str, set[str]] = {}
            for tensor, file in weight_map.items():
                names_of.setdefault(_plain_name(file), set()).add(tensor)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            notes.damaged(path, f"no index of weights: {error!r}")
            return
        notes.passed("structure")
    for file, tensors in sorted(names_of.items()):
        _examine_shard(path.parent / file, tensors, path, notes, examine)


def examine_if_there(files: Iterable[Path], examine: Examine, notes: Notes) -> None:
    """Looks at files that need not be there."""
    for file in sorted(files):
        if file.is_file():
            examine(file, notes)


def _plain_name(file: str) -> str:
    if Path(file).name != file:
        raise ValueError(f"{file!r} is not the name of a file beside it")
    return file


def _examine_shard(
    file: Path, tensors: set[str], index: Path, notes: Notes, examine: Examine
) -> None:
    if not file.exists():
        notes.damaged(file, f"missing; {index.name} names it")
        return
    examine(file, notes)
    if notes.is_damaged(file):
        return
    if absent := sorted(tensors - _names_in(file)):
        notes.damaged(file, f"lacks tensor {absent[0]}, which {index.name} places in it")


def _names_in(file: Path) -> set[str]:
    if file.suffix == ".safetensors":
        try:
            with file.open("rb") as opened:
                return set(read_header(opened, 0, file.stat().st_size))
        except (OSError, SafetensorsError):
            return set()
    content = read_plain(file)
    plain = content.plain if content else {}
    return {str(name) for name in plain} if isinstance(plain, dict) else set()
