"""Damage to what a rank holds in memory, as a cosmic ray does it: silently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


def flip_in_memory(optimizers: Iterable[Optimizer], what: str, bit: int) -> None:
    """Flips one bit of the first element of the first tensor that there is, in place.

    Args:
        optimizers: Whose parameters, or whose state for them.
        what: ``parameter`` or ``optimizer``.
        bit: From 0 for the lowest; counted anew past the highest.

    Raises:
        ValueError: If there is no such tensor.
    """
    find = _parameters if what == "parameter" else _state
    for optimizer in optimizers:
        for tensor in find(optimizer):
            held = getattr(tensor, "_local_tensor", tensor).detach()
            if held.dim() and held.numel():
                flip_bit(held, bit)
                return
    raise ValueError(
        f"Fault 'bitflip' with what={what} finds nothing to hit: before its first update an "
        "optimizer keeps nothing."
    )


def flip_bit(tensor: Tensor, bit: int, element: int = 0) -> None:
    """Flips one bit of one element of a tensor, in place.

    Args:
        tensor: At least one dimension, any type, any strides.
        bit: From 0 for the lowest; counted anew past the highest.
        element: Number of the element in the order of its indices, from 0.
    """
    import torch

    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.view(kinds[tensor.element_size()])
    num_bits = 8 * bits.element_size()
    mask = 1 << bit % num_bits
    if bits.dtype is not torch.uint8 and mask >> (num_bits - 1):
        mask -= 1 << num_bits
    index = []
    for length in reversed(bits.shape):
        element, at = divmod(element, length)
        index.append(at)
    bits[tuple(reversed(index))] ^= mask


def _parameters(optimizer: Any) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _state(optimizer: Any) -> Iterator[Tensor]:
    for parameter in _parameters(optimizer):
        for value in optimizer.state.get(parameter, {}).values():
            if hasattr(value, "dim"):
                yield value
