"""The inside of what torch.save writes: a zip of one pickle and the bytes of storages."""

import io
import struct
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

from slav1.checkpoint.formats._inert import (
    DTYPES,
    PICKLE_ERRORS,
    StorageReference,
    TensorReference,
    read_inert,
    tensors_in,
)
from slav1.checkpoint.formats._reading import Part, crc32_of

MAGIC = b"PK\x03\x04"
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_NAME_IS_UTF8 = 0x800
# Best scores and early stopping start from infinity.
MAY_BE_INFINITE = ("callbacks", "loops")


class Member(NamedTuple):
    """One file inside the zip."""

    start: int
    length: int
    crc: int


class Content(NamedTuple):
    """What one zip of torch holds."""

    members: Mapping[str, Member]
    """By their name without the archive's own."""
    plain: Any
    """The pickle, with inert objects; None if it can't be read."""
    storages: Mapping[str, StorageReference]
    has_checksums: bool


class TorchZipError(ValueError):
    """A zip of torch is damaged; the text says where."""


def open_zip(part: Part) -> Content:
    """Reads the directory and the pickle, and checks that they fit together.

    Raises:
        TorchZipError: If they do not.
        OSError: If the file can't be read.
    """
    members = _members(part)
    if "data.pkl" not in members:
        raise TorchZipError("holds no data.pkl")
    has_checksums = any(member.crc for member in members.values())
    plain, storages = _pickle(part, members["data.pkl"])
    for key, storage in storages.items():
        _check_storage(members, f"data/{key}", storage)
    return Content(members, plain, storages, has_checksums)


def check_crcs(part: Part, content: Content) -> None:
    """Compares every member with its checksum.

    Raises:
        TorchZipError: At the first one that differs.
        OSError: If the file can't be read.
    """
    for name, member in content.members.items():
        if crc32_of(part.file, part.start + member.start, member.length) != member.crc:
            raise TorchZipError(f"member {name} differs from its CRC-32")


def non_finite_tensors(
    part: Part, content: Content, count: Callable[[BinaryIO, int, int, Any], int]
) -> list[str]:
    """Names the tensors that hold NaN or infinity.

    Args:
        part: The zip.
        content: What :func:`open_zip` returned.
        count: Counts the values in a part of a file that are not finite.
    """
    from slav1.checkpoint.formats._numbers import float_type

    found = []
    for tensor in tensors_in(content.plain):
        dtype = float_type(tensor.dtype) if tensor.dtype else None
        member = content.members.get(f"data/{tensor.storage.key}")
        if dtype is None or member is None or tensor.name.split(".")[0] in MAY_BE_INFINITE:
            continue
        start, length = _range_in(tensor, member, dtype.itemsize)
        if num := count(part.file, part.start + start, length, dtype):
            found.append(f"{tensor.name or 'the tensor'} ({num} values)")
    return found


def _range_in(tensor: TensorReference, member: Member, item_bytes: int) -> tuple[int, int]:
    offset = min(tensor.offset * item_bytes, member.length)
    length = min(tensor.num_elements * item_bytes, member.length - offset)
    return member.start + offset, max(length, 0)


def _members(part: Part) -> dict[str, Member]:
    try:
        with zipfile.ZipFile(io.BufferedReader(part)) as archive:
            infos = archive.infolist()
        return {info.filename.partition("/")[2]: _member(part, info) for info in infos}
    except TorchZipError:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError, struct.error, NotImplementedError) as error:
        raise TorchZipError(f"cut or not a zip: {error}") from error


def _member(part: Part, info: zipfile.ZipInfo) -> Member:
    part.seek(info.header_offset)
    header = part.read(_LOCAL_HEADER.size) or b""
    if len(header) < _LOCAL_HEADER.size:
        raise TorchZipError(f"cut before member {info.filename}")
    fields = _LOCAL_HEADER.unpack(header)
    name = part.read(fields[9]) or b""
    encoding = "utf-8" if info.flag_bits & _NAME_IS_UTF8 else "cp437"
    if fields[0] != MAGIC or name != info.orig_filename.encode(encoding):
        raise TorchZipError(f"member {info.filename} is not where the directory says")
    if info.compress_type != zipfile.ZIP_STORED:
        raise TorchZipError(f"member {info.filename} is compressed; torch compresses nothing")
    start = info.header_offset + _LOCAL_HEADER.size + fields[9] + fields[10]
    if start + info.file_size > part.length:
        raise TorchZipError(f"cut inside member {info.filename}")
    return Member(start, info.file_size, info.CRC)


def _pickle(part: Part, member: Member) -> tuple[Any, dict[str, StorageReference]]:
    part.seek(member.start)
    try:
        return read_inert(io.BytesIO(part.read(member.length) or b""))
    except PICKLE_ERRORS as error:
        raise TorchZipError(f"member data.pkl is no pickle: {error}") from error


def _check_storage(members: Mapping[str, Member], name: str, storage: StorageReference) -> None:
    member = members.get(name)
    if member is None:
        raise TorchZipError(f"member {name} is missing; data.pkl refers to it")
    item = DTYPES.get(storage.kind)
    if item is not None and member.length != storage.num_elements * item[1]:
        raise TorchZipError(
            f"member {name} has {member.length} bytes; data.pkl says "
            f"{storage.num_elements * item[1]}"
        )
