"""Reads the tensors of a checkpoint's files without running anything that they contain.

Imports torch, so nothing that the monitor imports may import this module.
"""

import collections
import io
import pickle
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from slav1.checkpoint.fingerprints import name_tensors

METADATA = ".metadata"
"""Where torch's distributed checkpoints say what lies in which file."""

_DESCRIPTIONS = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
)
_BUILTINS = {"set", "frozenset", "list", "dict", "tuple", "complex", "bytearray", "slice", "range"}
_REBUILD = {
    "_rebuild_tensor",
    "_rebuild_tensor_v2",
    "_rebuild_tensor_v3",
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_sparse_tensor",
    "_rebuild_meta_tensor_no_storage",
}


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]] | None:
    """Every tensor of a file by its name; lazily where the format allows it.

    Args:
        path: A file of torch.save, of safetensors, or a part of a distributed checkpoint with
            its ``.metadata`` beside it.

    Returns:
        None if the file is of no form that holds tensors by name.

    Raises:
        Exception: Whatever the reader of that form raises for a damaged file.
    """
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix == ".distcp":
        return _read_distributed(path)
    if zipfile.is_zipfile(path):
        return iter(name_tensors(load_plain(path)).items())
    return None


def load_plain(file: Any) -> Any:
    """What torch.save wrote, with an empty stand-in for every object of a class of its own.

    No code of the file is run: only tensors and plain containers come to life.

    Args:
        file: Path or binary file. A path is mapped into memory instead of read.
    """
    is_path = isinstance(file, Path)
    module = SimpleNamespace(Unpickler=_PlainUnpickler, load=_plain_load, __name__="plain")
    return torch.load(
        str(file) if is_path else file,
        map_location="cpu",
        pickle_module=module,
        weights_only=False,
        mmap=is_path,
    )


def _read_safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            yield name, file.get_tensor(name)


def _read_distributed(path: Path) -> Iterator[tuple[str, Tensor]]:
    metadata = _plain_load(io.BytesIO((path.parent / METADATA).read_bytes()), distributed=True)
    with path.open("rb") as file:
        for index, place in metadata.storage_data.items():
            if place.relative_path != path.name or index.fqn in _not_tensors(metadata):
                continue
            file.seek(place.offset)
            value = load_plain(io.BytesIO(file.read(place.length)))
            if isinstance(value, Tensor):
                yield index.fqn, value


def _not_tensors(metadata: Any) -> set[str]:
    kinds = metadata.state_dict_metadata.items()
    return {name for name, kind in kinds if type(kind).__name__ == "BytesStorageMetadata"}


class _StandIn(dict[Any, Any]):
    """What an object of an unknown class becomes: takes everything, does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> "_StandIn":
        return self

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def append(self, value: Any) -> None: ...

    def extend(self, values: Any) -> None: ...

    def add(self, value: Any) -> None: ...


class _PlainUnpickler(pickle.Unpickler):
    """Knows tensors and plain containers only."""

    def find_class(self, module: str, name: str) -> Any:
        return _torch_name(module, name) or _plain_name(module, name) or _StandIn


class _DistributedUnpickler(_PlainUnpickler):
    """Knows the description of a distributed checkpoint too."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _DESCRIPTIONS:
            found = _of_module(module).get(name)
            # Only what is defined there: no function, and nothing that it merely imports.
            if isinstance(found, type) and found.__module__ == module:
                return found
        return super().find_class(module, name)


@cache
def _of_module(module: str) -> dict[str, Any]:
    import importlib

    return vars(importlib.import_module(module))


def _plain_load(file: Any, *, distributed: bool = False, **kwargs: Any) -> Any:
    return (_DistributedUnpickler if distributed else _PlainUnpickler)(file).load()


def _plain_name(module: str, name: str) -> Any:
    import _codecs
    import builtins

    if module == "collections" and name in ("OrderedDict", "defaultdict", "Counter", "deque"):
        return getattr(collections, name)
    if module == "builtins" and name in _BUILTINS:
        return getattr(builtins, name)
    if module == "_codecs" and name == "encode":
        return _codecs.encode
    return None


def _torch_name(module: str, name: str) -> Any:
    if module == "torch._utils" and name in _REBUILD:
        return getattr(torch._utils, name)  # noqa: SLF001 - what torch.save writes
    if module == "torch._tensor" and name == "_rebuild_from_type_v2":
        return torch._tensor._rebuild_from_type_v2  # noqa: SLF001 - the same
    if module in ("torch", "torch.storage"):
        found = getattr(torch if module == "torch" else torch.storage, name, None)
        if isinstance(found, torch.dtype | torch.layout) or found in (torch.Size, torch.device):
            return found
        if name.endswith("Storage"):
            return found
    if (module, name) == ("torch.nn.parameter", "Parameter"):
        return torch.nn.Parameter
    return None
