"""Copies that the same ranks hold, cut into shares that are looked at one after the other.

Imports torch, so nothing that the monitor imports may import this module.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
import xxhash
from torch import Tensor

from slav1.replicas.find import Copy
from slav1.replicas.hashing import Digester, Workspace, method_of

Kind: TypeAlias = tuple[tuple[int, ...], bool]
"""What a set is told apart by: the ranks that hold copies, and whether they are trained."""

SLOT_BYTES = {"cpu": 8 << 20}
"""Most that is looked at in one step, in bytes, by kind of device."""

_ELSEWHERE_SLOT_BYTES = 1 << 30


class CopySet:
    """Copies that the same ranks hold, and which share of them is due in which step."""

    def __init__(self, copies: list[Copy], every_steps: int) -> None:
        """Cuts them into shares.

        Args:
            copies: At least one, all of one :data:`Kind`, in the same order on all ranks.
            every_steps: Steps in which each share comes by once.
        """
        self.copies = copies
        """All of them."""
        self.kind: Kind = (copies[0].ranks, copies[0].is_trained)
        """Who holds them."""
        self.slots = _slots_of(copies, every_steps)
        """For each copy its share, from 0."""
        num_slots = self.slots[-1] + 1
        self.all_slots = list(range(num_slots))
        """All shares."""
        self.identity = _identity(copies, self.slots, every_steps)
        """Equal on ranks that hold the same tensors in the same shares."""
        self._every_steps = every_steps
        self._due: dict[int, list[int]] = {}
        for slot in self.all_slots:
            self._due.setdefault(slot * every_steps // num_slots, []).append(slot)
        workspaces: dict[torch.device, Workspace] = {}
        mine = list(zip(copies, self.slots, strict=True))
        self._shares = [
            _Share([copy.tensor for copy, at in mine if at == slot], workspaces)
            for slot in self.all_slots
        ]

    def fits(self) -> bool:
        """Whether all tensors still lie where they lay."""
        return all(share.fits() for share in self._shares)

    def due_slots(self, after: int, step: int) -> list[int]:
        """Shares whose turn comes after step ``after``, up to ``step``."""
        every = self._every_steps
        due = [
            slots
            for place, slots in self._due.items()
            if (step - place) // every > (after - place) // every
        ]
        return [slot for slots in due for slot in slots]

    def next_step(self, step: int) -> int:
        """First step after ``step`` after which one is looked at."""
        return min(step + 1 + (place - step - 1) % self._every_steps for place in self._due)

    def sums(self, slots: list[int], turn: int) -> Tensor:
        """What :meth:`digests` makes digests of, on one device; one dimension, int64.

        Args:
            slots: Shares to look at.
            turn: Counts the rounds, see :meth:`Digester.sums`.
        """
        parts = [part for slot in slots for part in self._shares[slot].sums(turn)]
        if len(parts) == 1:
            return parts[0]
        return torch.cat([part.to(parts[0].device) for part in parts])

    def digests(self, slots: list[int], sums: list[int]) -> list[int]:
        """Digests of the tensors of these shares, in the order of the set."""
        found: list[int] = []
        start = 0
        for slot in slots:
            end = start + self._shares[slot].num_sums
            found += self._shares[slot].digests(sums[start:end])
            start = end
        return found


class _Share:
    """Tensors that are looked at together, those of one device at once."""

    def __init__(
        self, tensors: Sequence[Tensor], workspaces: dict[torch.device, Workspace]
    ) -> None:
        by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
        for place, tensor in enumerate(tensors):
            by_device.setdefault(tensor.device, []).append((place, tensor))
        self._groups = [[tensor for _, tensor in group] for group in by_device.values()]
        self._places = [place for group in by_device.values() for place, _ in group]
        self._digesters = [
            Digester(group, workspaces.setdefault(device, Workspace(device)))
            for device, group in zip(by_device, self._groups, strict=True)
        ]
        self.num_sums = sum(digester.num_sums for digester in self._digesters)

    def fits(self) -> bool:
        """Whether all tensors still lie where they lay."""
        both = zip(self._digesters, self._groups, strict=True)
        return all(digester.fits(group) for digester, group in both)

    def sums(self, turn: int) -> list[Tensor]:
        """What digests are made of, by device."""
        return [digester.sums(turn) for digester in self._digesters]

    def digests(self, sums: list[int]) -> list[int]:
        """Digests in the order of the tensors."""
        by_device: list[int] = []
        start = 0
        for digester in self._digesters:
            end = start + digester.num_sums
            by_device += digester.digests(sums[start:end])
            start = end
        found = [0] * len(by_device)
        for place, digest in zip(self._places, by_device, strict=True):
            found[place] = digest
        return found


def _slots_of(copies: Sequence[Copy], every_steps: int) -> list[int]:
    """Cuts the copies into shares of about equal size; returns for each copy its share."""
    sizes = [one.tensor.numel() * one.tensor.element_size() for one in copies]
    most = SLOT_BYTES.get(copies[0].tensor.device.type, _ELSEWHERE_SLOT_BYTES)
    total = sum(sizes)
    num = max(1, min(every_steps, len(copies), -(-total // most)))
    shares, before = [], 0
    for size in sizes:
        shares.append(before * num // total)
        before += size
    # One large tensor may have left shares empty.
    number = {share: place for place, share in enumerate(sorted(set(shares)))}
    return [number[share] for share in shares]


def _identity(copies: Sequence[Copy], slots: Sequence[int], every_steps: int) -> str:
    found = xxhash.xxh3_128()
    for copy, slot in zip(copies, slots, strict=True):
        tensor = copy.tensor
        place = (tuple(tensor.shape), str(tensor.dtype), tensor.stride(), method_of(tensor.device))
        facts = (copy.name, copy.kind, copy.ranks, slot, every_steps, place)
        found.update(repr(facts).encode())
    return found.hexdigest()
