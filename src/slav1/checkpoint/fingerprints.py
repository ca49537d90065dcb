"""Fingerprints of tensors: what was in memory, to be found again in what was written.

Imports torch, so nothing that the monitor imports may import this module.
"""

import ctypes
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from slav1.checkpoint.digests import Algorithm, new_hash

ELEMENTS_AT_ONCE = 32768
"""Elements that torch works on in one thread."""


def fingerprint(tensor: Tensor, algorithm: Algorithm = "xxh3") -> str:
    """Digest over type, shape and bytes of a tensor.

    Equal tensors have equal fingerprints wherever they lie and whatever their strides; NaNs
    count by their bits. Of a tensor that is spread over ranks it is the part of this rank.

    Args:
        tensor: Any shape, any type, on any device; from a device it is copied.
        algorithm: Which digest.
    """
    plain = _plain(tensor)
    found = new_hash(algorithm)
    found.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
    num_bytes = plain.numel() * plain.element_size()
    if num_bytes:
        found.update((ctypes.c_char * num_bytes).from_address(plain.data_ptr()))
    return str(found.hexdigest())


def fingerprint_tensors(
    tensors: Mapping[str, Tensor], algorithm: Algorithm = "xxh3"
) -> dict[str, str]:
    """Fingerprint of every tensor, by its name."""
    return {name: fingerprint(tensor, algorithm) for name, tensor in tensors.items()}


def root_of(fingerprints: Mapping[str, str], algorithm: Algorithm = "xxh3") -> str:
    """One digest over names and fingerprints; '' if there are none."""
    if not fingerprints:
        return ""
    root = new_hash(algorithm)
    for name in sorted(fingerprints):
        root.update(f"{len(name)}:{name}={fingerprints[name]};".encode())
    return str(root.hexdigest())


def name_tensors(state: Any, name: str = "") -> dict[str, Tensor]:
    """Every tensor in nested dicts, lists and tuples, by the path to it, joined by dots.

    A host calls it on what it is about to write, and the check calls it on what it read.

    Example:
        >>> name_tensors({"model": {"w": torch.ones(1)}, "steps": [torch.ones(2)]}).keys()
        dict_keys(['model.w', 'steps.0'])
    """
    return dict(_walk(state, name))


def name_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Name of the first tensor that holds a NaN or an infinite number; None if none does.

    Reads every floating-point tensor once; on a device it waits for it once for each tensor.
    """
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in tensors.items():
        local = _local(tensor.detach())
        if not (local.is_floating_point() or local.is_complex()) or not local.numel():
            continue
        if (local.data_ptr(), local.shape) in seen:
            continue
        seen.add((local.data_ptr(), local.shape))
        if not _is_finite(local):
            return name
    return None


def _walk(state: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(state, Tensor):
        yield name, state
        return
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(state, Mapping):
        inner = state.items()
    elif isinstance(state, list | tuple):
        inner = enumerate(state)
    for key, value in inner:
        yield from _walk(value, f"{name}.{key}" if name else str(key))


def _local(tensor: Tensor) -> Tensor:
    # DTensor: what this rank holds of it, without a collective.
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def _plain(tensor: Tensor) -> Tensor:
    local = _local(tensor.detach())
    if local.layout is not torch.strided:
        local = local.to_dense()
    return local.resolve_conj().resolve_neg().cpu().contiguous()


def _is_finite(tensor: Tensor) -> bool:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.element_size() == 1:
        # The 8-bit types have no minimum; they are few, so a copy does no harm.
        tensor = tensor.float()
    # A number that is not finite makes the sum so too, and a sum is the fastest look. It can
    # also overflow by itself, so only a finite one settles the question.
    if _has_finite_sum(tensor):
        return True
    # A NaN wins in minimum and maximum, so both are finite only if all is.
    lowest, highest = torch.aminmax(tensor)
    return math.isfinite(lowest.item()) and math.isfinite(highest.item())


def _has_finite_sum(tensor: Tensor) -> bool:
    dtype = max(tensor.dtype, torch.float32, key=lambda one: one.itemsize)
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return math.isfinite(tensor.sum(dtype=dtype).item())
    # Parts too small for torch to spread over threads, which would wait for each other at
    # each: five times faster on a machine that does other things too.
    parts = tensor.view(-1).split(ELEMENTS_AT_ONCE)  # type: ignore[no-untyped-call]
    return math.isfinite(torch.stack([part.sum(dtype=dtype) for part in parts]).sum().item())
