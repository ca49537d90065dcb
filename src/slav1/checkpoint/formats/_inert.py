"""Reading pickles of strangers without running anything of them."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, BinaryIO, TypeGuard, TypeVar

# What reading a damaged pickle can raise. A damaged opcode may ask for anything, so the
# list is long; nothing of it is our own mistake.
PICKLE_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
)


_Made = TypeVar("_Made", bound="Inert")


class Inert(dict[Any, Any]):
    """Stands for an object of any class: holds what the pickle says, and does nothing."""

    MODULE = ""
    NAME = ""

    # Typing has Self only from Python 3.11 on.
    def __new__(cls: type[_Made], *args: Any, **fields: Any) -> _Made:  # noqa: PYI019
        made = dict.__new__(cls)
        made.args = args
        made.state = fields or None
        made.parts = []
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    args: tuple[Any, ...]
    """What it was called with."""

    state: Any
    """What it was to be set to."""

    parts: list[Any]
    """What was appended to it."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, part: Any) -> None:
        self.parts.append(part)

    def extend(self, parts: Any) -> None:
        self.parts.extend(parts)

    add = append


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageReference:
    """A storage that a pickle of torch refers to."""

    key: str
    """Name of the storage in the file."""

    kind: str
    """Name of its class, for example ``FloatStorage``."""

    num_elements: int
    """Elements of that class; bytes for an ``UntypedStorage``."""


class _Reader(pickle.Unpickler):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="utf-8", errors="surrogateescape")
        self._classes: dict[tuple[str, str], type[Inert]] = {}
        self.storages: dict[str, StorageReference] = {}

    def find_class(self, module: str, name: str) -> Any:
        key = (module, name)
        if key not in self._classes:
            self._classes[key] = type("Inert", (Inert,), {"MODULE": module, "NAME": name})
        return self._classes[key]

    def persistent_load(self, reference: Any) -> Any:
        if not (isinstance(reference, tuple) and len(reference) >= 5 and reference[0] == "storage"):
            return Inert(reference)
        _, kind, key, _, num_elements = reference[:5]
        if not _is_inert_class(kind) or not isinstance(num_elements, int):
            raise pickle.UnpicklingError("a reference to a storage is not of torch's form")
        found = StorageReference(key=str(key), kind=kind.NAME, num_elements=num_elements)
        self.storages.setdefault(found.key, found)
        return found


def read_inert(file: BinaryIO) -> tuple[Any, dict[str, StorageReference]]:
    """Reads one pickle; every object in it becomes an :class:`Inert`.

    No class is looked up and nothing is imported or called, so a hostile pickle can do no
    more than use memory.

    Args:
        file: Stands at the start of a pickle; afterwards just behind its end.

    Returns:
        The content, and the storages of torch it refers to by their key.

    Raises:
        Exception: One of :data:`PICKLE_ERRORS` where the pickle is damaged.
    """
    reader = _Reader(file)
    return reader.load(), reader.storages


def fields_of(made: Any) -> dict[str, Any]:
    """The fields of an object that was saved by its fields; empty for all others."""
    state = made.state if isinstance(made, Inert) else None
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        state = {**(state[0] or {}), **state[1]}
    return state if isinstance(state, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReference:
    """A tensor inside a pickle of torch."""

    name: str
    """Keys that lead to it, joined by points."""

    storage: StorageReference
    """Where its elements lie."""

    dtype: str
    """Name of its data type as torch has it, for example ``bfloat16``; empty if unknown."""

    offset: int
    """First element, counted from the start of the storage."""

    num_elements: int
    """Elements from the first to the last, those between that are not its own included."""


def tensors_in(content: Any) -> Iterator[TensorReference]:
    """Yields every tensor of what :func:`read_inert` returned."""
    seen: set[int] = set()
    ahead: list[tuple[str, Any]] = [("", content)]
    while ahead:
        name, part = ahead.pop()
        if isinstance(part, str | bytes | int | float | NoneType) or id(part) in seen:
            continue
        seen.add(id(part))
        tensor = _tensor(name, part)
        if tensor is not None:
            yield tensor
        else:
            ahead += reversed(list(_parts(name, part)))


def _parts(name: str, part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(part, dict):
        yield from ((f"{name}.{key}" if name else str(key), each) for key, each in part.items())
    if isinstance(part, list | tuple | set | frozenset):
        yield from ((f"{name}.{i}" if name else str(i), each) for i, each in enumerate(part))
    if isinstance(part, Inert):
        yield from ((name, each) for each in (*part.args, part.state, *part.parts))


def _tensor(name: str, part: Any) -> TensorReference | None:
    if not isinstance(part, Inert) or not part.NAME.startswith("_rebuild_tensor"):
        return None
    storage, offset, size, stride = (*part.args, None, None, None, None)[:4]
    if not isinstance(storage, StorageReference) or not isinstance(offset, int):
        return None
    sizes, strides = _numbers(size), _numbers(stride)
    extent = 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=False))
    dtypes = [each.NAME for each in part.args[4:] if _is_inert_class(each)]
    dtype = dtypes[0] if dtypes else DTYPES.get(storage.kind, ("", 1))[0]
    return TensorReference(
        name=name, storage=storage, dtype=dtype, offset=offset, num_elements=extent
    )


def _is_inert_class(part: Any) -> TypeGuard[type[Inert]]:
    return isinstance(part, type) and issubclass(part, Inert)


def _numbers(plain: Any) -> tuple[int, ...]:
    if isinstance(plain, Inert):
        plain = plain.args[0] if plain.args else ()
    return tuple(plain) if isinstance(plain, tuple | list) else ()


DTYPES = {
    "DoubleStorage": ("float64", 8),
    "FloatStorage": ("float32", 4),
    "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2),
    "ComplexDoubleStorage": ("complex128", 16),
    "ComplexFloatStorage": ("complex64", 8),
    "LongStorage": ("int64", 8),
    "IntStorage": ("int32", 4),
    "ShortStorage": ("int16", 2),
    "CharStorage": ("int8", 1),
    "ByteStorage": ("uint8", 1),
    "BoolStorage": ("bool", 1),
    "UntypedStorage": ("", 1),
}
"""Data type and bytes of an element, by the storage classes that torch writes."""
