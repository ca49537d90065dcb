"""Files of torch.save in its old form, and plain pickles: no zip, no checksums."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from slav1.checkpoint.formats import _inert as inert
from slav1.checkpoint.formats._notes import Examine, Notes
from slav1.checkpoint.formats._reading import head_of
from slav1.checkpoint.formats._torch_zip import MAY_BE_INFINITE

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
"""First pickle of an old file of torch."""

_COUNT_BYTES = 8
# Not .bin: too many other things are called so.
_SUFFIXES = (".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class PickleFile:
    """A pickle, alone or followed by storages as old versions of torch wrote them."""

    name: str = "pickle file"

    def claims(self, path: Path) -> bool:
        # A pickle of protocol 2 or later; under a usual name anything is held to be one, so
        # that an emptied or overwritten file is damage and not a stranger.
        head = head_of(path, 2)
        is_pickle = len(head) == 2 and head[0] == 0x80 and 2 <= head[1] <= 5
        return path.is_file() and (is_pickle or path.suffix in _SUFFIXES)

    def examine(self, path: Path, notes: Notes, examine: Examine) -> None:
        with notes.looking_at(path), path.open("rb") as file:
            try:
                self._read(file, path, notes)
            except inert.PICKLE_ERRORS as error:
                text = str(error) or type(error).__name__
                empty = "empty" if path.stat().st_size == 0 else f"neither zip nor pickle: {text}"
                notes.damaged(path, empty if file.tell() < 3 else f"cut or damaged pickle: {text}")
        if not notes.is_damaged(path):
            notes.passed("structure")
            if path not in notes.proved:
                notes.unchecked(path, "the format has no checksums: bytes of values")

    def _read(self, file: BinaryIO, path: Path, notes: Notes) -> None:
        first, _ = inert.read_inert(file)
        if first != MAGIC_NUMBER:
            _expect_end(file, path, notes)
            if notes.finite:
                notes.unchecked(path, "a plain pickle: whether its numbers are finite")
            return
        for _ in ("protocol version", "system"):
            inert.read_inert(file)
        content, storages = inert.read_inert(file)
        keys, _ = inert.read_inert(file)
        starts = _walk_storages(file, keys, storages)
        _expect_end(file, path, notes)
        if notes.finite:
            _look_for_non_finite(path, content, starts, notes)


def _walk_storages(
    file: BinaryIO, keys: Any, storages: dict[str, inert.StorageReference]
) -> dict[str, int]:
    """Checks that every storage is there in full; returns where each starts."""
    length = os.fstat(file.fileno()).st_size
    if not isinstance(keys, list) or set(map(str, keys)) != set(storages):
        raise ValueError("its list of storages does not fit its tensors")
    starts = {}
    for key in map(str, keys):
        storage = storages[key]
        count = int.from_bytes(file.read(_COUNT_BYTES), "little")
        _, item_bytes = inert.DTYPES.get(storage.kind, ("", 1))
        if count != storage.num_elements:
            raise ValueError(f"storage {key} has {count} elements instead of the expected number")
        starts[key] = file.tell()
        if starts[key] + count * item_bytes > length:
            raise ValueError(f"the file ends inside storage {key}")
        file.seek(count * item_bytes, os.SEEK_CUR)
    return starts


def _expect_end(file: BinaryIO, path: Path, notes: Notes) -> None:
    num_more = os.fstat(file.fileno()).st_size - file.tell()
    if num_more:
        notes.damaged(path, f"{num_more} bytes more than it should have")


def _look_for_non_finite(path: Path, content: Any, starts: dict[str, int], notes: Notes) -> None:
    from slav1.checkpoint.formats._numbers import float_type, num_non_finite

    with path.open("rb", buffering=0) as raw:
        for tensor in inert.tensors_in(content):
            dtype = float_type(tensor.dtype) if tensor.dtype else None
            if dtype is None or tensor.name.split(".")[0] in MAY_BE_INFINITE:
                continue
            start = starts[tensor.storage.key] + tensor.offset * dtype.itemsize
            if num := num_non_finite(raw, start, tensor.num_elements * dtype.itemsize, dtype):
                notes.damaged(path, f"not finite: {tensor.name} ({num} values)")
    if not notes.is_damaged(path):
        notes.passed("finite")
