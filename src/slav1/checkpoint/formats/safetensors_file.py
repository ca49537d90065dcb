"""Safetensors: a header in JSON, then the bytes of the tensors; no checksums."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from slav1.checkpoint.formats._notes import Examine, Notes

ITEM_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8}
ITEM_BITS |= {"F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
ITEM_BITS |= {"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32}
ITEM_BITS |= {"F64": 64, "I64": 64, "U64": 64, "C64": 64}

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000


class SafetensorsError(ValueError):
    """A file or part is no whole safetensors; the text says why."""


def read_header(file: BinaryIO, start: int, length: int) -> dict[str, Mapping[str, Any]]:
    """Reads and checks the header of safetensors that lie in a part of a file.

    Args:
        file: The file.
        start: First byte of the part.
        length: Its bytes.

    Returns:
        Data type, shape and place of every tensor by its name; the place counts from the
        start of the file.

    Raises:
        SafetensorsError: If header and length do not fit together.
    """
    file.seek(start)
    num_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    first = start + _LENGTH_BYTES + num_bytes
    if length < _LENGTH_BYTES or num_bytes > min(length - _LENGTH_BYTES, _MAX_HEADER_BYTES):
        raise SafetensorsError("cut, or its header is damaged: it does not fit into the file")
    try:
        header = json.loads(file.read(num_bytes))
        header.pop("__metadata__", None)
        spans = sorted(_span(name, entry) for name, entry in header.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SafetensorsError(f"its header is damaged: {error}") from error
    at = 0
    for begin, end, name in spans:
        if begin != at:
            raise SafetensorsError(f"tensor {name} is not where the one before it ends")
        at = end
    if first + at != start + length:
        raise SafetensorsError(
            f"it has {length} bytes; its header says {_LENGTH_BYTES + num_bytes + at}"
        )
    return {
        name: {**header[name], "data_offsets": (first + begin, first + end)}
        for begin, end, name in spans
    }


def _span(name: str, entry: Any) -> tuple[int, int, str]:
    begin, end = entry["data_offsets"]
    bits = ITEM_BITS.get(entry["dtype"])
    if bits is not None and (end - begin) * 8 != prod(entry["shape"]) * bits:
        raise ValueError(f"length and shape of tensor {name} differ")
    return int(begin), int(end), name


def look_for_non_finite(
    file: BinaryIO, header: Mapping[str, Mapping[str, Any]], path: Path, notes: Notes
) -> None:
    """Writes down the tensors that hold NaN or infinity."""
    from slav1.checkpoint.formats._numbers import float_type, num_non_finite

    for name, entry in header.items():
        dtype = float_type(entry["dtype"])
        begin, end = entry["data_offsets"]
        if dtype is not None and (num := num_non_finite(file, begin, end - begin, dtype)):
            notes.damaged(path, f"not finite: {name} ({num} values)")
        if dtype is None and entry["dtype"].startswith("F"):
            notes.unchecked(path, f"whether values of type {entry['dtype']} are finite")


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A file of safetensors."""

    name: str = "safetensors file"

    def claims(self, path: Path) -> bool:
        return path.is_file() and path.suffix == ".safetensors"

    def examine(self, path: Path, notes: Notes, examine: Examine) -> None:
        with notes.looking_at(path), path.open("rb", buffering=0) as file:
            try:
                header = read_header(file, 0, path.stat().st_size)
            except SafetensorsError as error:
                notes.damaged(path, str(error))
                return
            notes.passed("structure")
            if path not in notes.proved:
                notes.unchecked(path, "the format has no checksums: bytes of values")
            if notes.finite:
                look_for_non_finite(file, header, path, notes)
                if not notes.is_damaged(path):
                    notes.passed("finite")
