"""Tensors in whatever a module takes or gives.

Imports torch, so nothing that the monitor imports may import this module.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor


def tensors(value: Any, place: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields every tensor with the keys that lead to it, as `` logits`` or `` 0.mask``."""
    if isinstance(value, Tensor):
        yield place, value
        return
    for key, part in _parts(value):
        yield from tensors(part, f"{place}.{key}" if place else f" {key}")


def mapped(value: Any, change: Callable[[str, Tensor], Tensor], place: str = "") -> Any:
    """Returns the value with every tensor changed; containers are new, all else is the same.

    Args:
        value: Tensors in tuples, lists, mappings and dataclasses.
        change: Takes the keys that lead to a tensor, as :func:`tensors` gives them, and it.
        place: Keys that lead to ``value``.
    """
    if isinstance(value, Tensor):
        return change(place, value)
    parts = {
        key: mapped(part, change, f"{place}.{key}" if place else f" {key}")
        for key, part in _parts(value)
    }
    if not parts:
        return value
    if isinstance(value, tuple):
        build: Callable[..., Any] = getattr(value, "_make", tuple)
        return build(parts.values())
    changed = copy.copy(value)
    for key, part in parts.items():
        if isinstance(value, Mapping | list):
            changed[key] = part
        else:
            object.__setattr__(changed, key, part)
    return changed


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return enumerate(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    return ()
