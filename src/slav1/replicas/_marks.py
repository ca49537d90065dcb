"""What is kept of gradients to compare two runs of one micro-batch, and the comparison.

Imports torch, so nothing that the monitor imports may import this module.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from slav1.replicas.hashing import Digester, Workspace

MIN_TOLERANCE_RATIO = 1e-6
"""Least difference of two norms that counts where gradients do not repeat bit for bit."""

SAFETY = 10.0
"""By how much a difference must exceed what two honest runs differed by."""


class Mark(NamedTuple):
    """What is kept of one tensor, on its device."""

    sums: Tensor
    norm: Tensor


Marks: TypeAlias = Mapping[str, Mark]


class Marker:
    """Makes marks; the memory for it is kept from one to the next."""

    def __init__(self) -> None:
        """Starts with no memory."""
        self._workspaces: dict[torch.device, Workspace] = {}

    def mark(self, tensor: Tensor) -> Mark:
        """Takes in the bits of a tensor as they are now; waits for no device."""
        plain = tensor.detach()
        plain = plain.contiguous() if plain.layout is torch.strided else plain.to_dense()
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
        workspace = self._workspaces.get(plain.device)
        if workspace is None:
            workspace = self._workspaces[plain.device] = Workspace(plain.device)
        sums = Digester([plain], workspace).sums(0)
        return Mark(sums, torch.linalg.vector_norm(plain, dtype=torch.float64))


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
    device = one[names[0]].sums.device
    same = [(one[name].sums == other[name].sums).all().to(device) for name in names]
    equal = torch.stack(same).tolist()
    return (*missing, *(name for name, is_same in zip(names, equal, strict=True) if not is_same))


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
