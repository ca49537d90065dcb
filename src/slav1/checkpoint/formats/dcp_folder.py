"""Folders of torch.distributed.checkpoint, which FSDP's sharded states are too."""

import io
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from slav1.checkpoint.formats._inert import PICKLE_ERRORS, Inert, fields_of, read_inert
from slav1.checkpoint.formats._notes import Examine, Notes
from slav1.checkpoint.formats._reading import Part, read_small
from slav1.checkpoint.formats.torch_file import examine_zip

METADATA = ".metadata"
_SHARD = re.compile(r"__(\d+)_\d+\.distcp")


class _Item(NamedTuple):
    name: str
    offset: int
    length: int
    is_transformed: bool


class _Listing(NamedTuple):
    items: dict[str, list[_Item]]
    """What lies in each file."""
    absent: list[str]
    """Tensors of which a part is in no file."""


def ranks_in(folder: Path) -> set[int]:
    """Ranks whose files lie in a folder of this form."""
    matches = (_SHARD.fullmatch(file.name) for file in folder.iterdir())
    return {int(match[1]) for match in matches if match}


def is_dcp(folder: Path) -> bool:
    """Whether a folder has files of this form."""
    return folder.is_dir() and ((folder / METADATA).exists() or bool(ranks_in(folder)))


@dataclass(frozen=True, slots=True)
class DcpFolder:
    """A folder of ``torch.distributed.checkpoint``: ``.metadata`` names files and lengths."""

    name: str = "DCP folder"

    def claims(self, path: Path) -> bool:
        return is_dcp(path)

    def examine(self, path: Path, notes: Notes, examine: Examine) -> None:
        metadata = path / METADATA
        if not metadata.exists():
            notes.damaged(metadata, "missing: the save did not end, so no file can be trusted")
            return
        with notes.looking_at(metadata):
            try:
                listing = _read_metadata(read_small(metadata))
            except PICKLE_ERRORS as error:
                notes.damaged(metadata, f"no metadata of DCP: {error}")
                return
            notes.passed("structure")
        for tensor in listing.absent:
            notes.damaged(metadata, f"places a part of tensor {tensor} in no file")
        for name, items in sorted(listing.items.items()):
            file = path / name
            if not file.exists():
                notes.damaged(file, "missing; .metadata names it")
            elif file.suffix == ".safetensors":
                examine(file, notes)
            else:
                _examine_file(file, items, notes)
        for file in sorted(path.iterdir()):
            if _SHARD.fullmatch(file.name) and file.name not in listing.items:
                notes.unchecked(file, "not named by .metadata: no part of this checkpoint")
        notes.unsure_of_more(metadata, "whether all files are of the same save: no step in them")


def _read_metadata(data: bytes) -> _Listing:
    content, _ = read_inert(io.BytesIO(data))
    fields = fields_of(content)
    storage, described = fields["storage_data"], fields["state_dict_metadata"]
    if not isinstance(storage, dict) or not isinstance(described, dict):
        raise TypeError("its tables are missing")
    items: dict[str, list[_Item]] = defaultdict(list)
    stored = set()
    for index, info in storage.items():
        key, place = fields_of(index), fields_of(info)
        name = str(place["relative_path"])
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"it names a file outside: {name!r}")
        offset, length = int(place["offset"]), int(place["length"])
        if offset < 0 or length < 0:
            raise ValueError(f"it places {key['fqn']!r} before the start of a file")
        transformed = bool(place.get("transform_descriptors"))
        items[name].append(_Item(str(key["fqn"]), offset, length, transformed))
        stored.add((str(key["fqn"]), _numbers(key.get("offset"))))
    absent = [name for name, about in described.items() if _chunks(name, about) - stored]
    return _Listing(dict(items), absent)


def _chunks(name: str, about: Any) -> set[tuple[str, tuple[int, ...]]]:
    chunks = fields_of(about).get("chunks")
    if not isinstance(chunks, Iterable):
        return set()
    return {(str(name), _numbers(fields_of(chunk)["offsets"])) for chunk in chunks}


def _numbers(size: Any) -> tuple[int, ...]:
    """A torch.Size, or nothing."""
    inner = size.args[0] if isinstance(size, Inert) and size.args else ()
    return tuple(int(number) for number in inner)


def _examine_file(path: Path, items: list[_Item], notes: Notes) -> None:
    with notes.looking_at(path), path.open("rb", buffering=0) as file:
        length, wanted = path.stat().st_size, max(item.offset + item.length for item in items)
        if length != wanted:
            notes.damaged(path, f"it has {length} bytes; .metadata says {wanted}")
            return
        readable = sorted((item for item in items if not item.is_transformed), key=_offset)
        if len(readable) < len(items):
            notes.unchecked(path, "compressed or encrypted by an extension of DCP: content")
        num_with_crc = sum(_has_crc(file, path, item, notes) for item in readable)
        if notes.is_damaged(path):
            return
        notes.passed("structure")
        if num_with_crc == len(items):
            notes.passed("crc32")
        if notes.finite and len(readable) == len(items):
            notes.passed("finite")


def _offset(item: _Item) -> int:
    return item.offset


def _has_crc(file: BinaryIO, path: Path, item: _Item, notes: Notes) -> bool:
    """Looks at one tensor or object; returns whether it has checksums that were compared."""
    part = Part(file, item.offset, item.length)
    content = examine_zip(part, path, notes, f"{item.name}: ")
    return content is not None and content.has_checksums and path not in notes.proved
