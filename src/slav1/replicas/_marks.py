"""What is kept of gradients to compare two runs of one micro-batch, and the comparison.

Imports torch, so nothing that the monitor imports may import this module.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

MIN_TOLERANCE_RATIO = 1e-6
"""Least difference of two norms that counts where gradients do not repeat bit for bit."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

SAFETY = 10.0
"""By how much a difference must exceed what two honest runs differed by."""


class Mark(NamedTuple):
    """What is kept of one tensor, on its device: a few numbers, whatever its size."""

    sum: Tensor
    """Sum of its bits, taken as whole numbers: one that changes always changes it."""

    norm: Tensor
    """Its L2 norm, which tells most changes that cancel in the sum."""


Marks: TypeAlias = Mapping[str, Mark]


def mark(tensor: Tensor) -> Mark:
    """Takes in a tensor of any floating-point type as it is now; waits for no device."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    bits = plain.contiguous().view(-1).view(_INTEGERS[plain.element_size()])
    is_in_words = bits.element_size() < 8 and _is_of_words(bits)
    bits = bits.view(torch.int64) if is_in_words else bits
    norm = torch.linalg.vector_norm(plain, dtype=torch.float64)
    return Mark(bits.sum(dtype=torch.int64), norm)


def _is_of_words(bits: Tensor) -> bool:
    """Whether bits can be taken eight bytes at a time, which is faster."""
    per_word = 8 // bits.element_size()
    return bits.numel() % per_word == 0 and bits.storage_offset() % per_word == 0


class Tolerance:
    """How far two runs may be apart: not at all, or as far as two honest ones were."""

    def __init__(self) -> None:
        """Bits are compared until :meth:`widen`."""
        self.ratio: float | None = None
        """Largest difference of norms that is honest, as a share of the norm of all; None if
        bits are compared."""

    def widen(self, one: Marks, other: Marks) -> float:
        """Learns from two honest runs that did not repeat bit for bit; returns the ratio."""
        apart = max(_apart(one, other).values(), default=0.0)
        self.ratio = max(MIN_TOLERANCE_RATIO, SAFETY * apart)
        return self.ratio

    def differing(self, one: Marks, other: Marks) -> tuple[str, ...]:
        """Names of what differs in two runs, in the order of the first."""
        if self.ratio is None:
            return unequal_bits(one, other)
        limit = self.ratio
        # Written so that what is not a number is no honest difference either.
        return tuple(name for name, apart in _apart(one, other).items() if not apart <= limit)

    def which_is_wrong(self, first: Marks, second: Marks, third: Marks) -> str:
        """Which of two runs that differ was wrong, by a third: ``first``, ``second`` or
        ``unclear``."""
        if not self.differing(second, third):
            return "first"
        return "second" if not self.differing(first, third) else "unclear"


def unequal_bits(one: Marks, other: Marks) -> tuple[str, ...]:
    """Names of what is not the same bit for bit, or there in one only. Waits for a device."""
    names = [name for name in one if name in other]
    missing = {name: None for name in (*one, *other) if name not in one or name not in other}
    if not names:
        return tuple(missing)
    device = one[names[0]].sum.device
    same = _rows(one, names, device) == _rows(other, names, device)
    equal = same.all(dim=1).tolist()
    return (*missing, *(name for name, is_same in zip(names, equal, strict=True) if not is_same))


def _rows(marks: Marks, names: Sequence[str], device: torch.device) -> Tensor:
    """Sums and bits of norms; ``(num_names, 2)``, int64."""
    sums = torch.stack([marks[name].sum.to(device) for name in names])
    norms = torch.stack([marks[name].norm.to(device) for name in names])
    return torch.stack([sums, norms.view(torch.int64)], dim=1)


def _apart(one: Marks, other: Marks) -> dict[str, float]:
    """How far the norms of two runs are apart, as a share of the norm of all."""
    names = [name for name in one if name in other]
    if not names:
        return {}
    device = one[names[0]].norm.device
    here = torch.stack([one[name].norm.to(device) for name in names])
    there = torch.stack([other[name].norm.to(device) for name in names])
    whole = torch.maximum(torch.linalg.vector_norm(here), torch.linalg.vector_norm(there))
    apart = (here - there).abs() / whole.clamp(min=1e-300)
    return dict(zip(names, apart.tolist(), strict=True))
