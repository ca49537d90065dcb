"""Digests of replicated tensors, put together step by step and compared."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from slav1.coordinator.messages import RankDigests, RankReplicas
from slav1.named_ranks import named, numbers
from slav1.sample import Difference, Replicas

MAX_WAITING = 8
"""Steps of one set that may wait for the digests of ranks that are late; the oldest is then
compared between those that are there."""

MAX_DIFFERENCES = 64
"""Differing tensors of one step that are told one by one."""

DIGEST_BYTES = 8
"""Length of one digest, in bytes."""

_Kind: TypeAlias = tuple[tuple[int, ...], bool]
"""What sets are told apart by: the ranks that hold copies, and whether they are trained."""


class ReplicaSets:
    """Knows which ranks hold copies of which tensors, and compares what comes in.

    Waits for nobody: a rank that is missing only keeps its own copies out.
    """

    def __init__(self) -> None:
        """Starts with no set declared."""
        self._sets: dict[str, _Set] = {}
        self._declared: dict[_Kind, dict[int, str]] = {}
        self._newest: dict[_Kind, dict[int, tuple[int, str]]] = {}
        self._is_introduced = False
        self._unlike: set[_Kind] = set()

    def declare(self, message: RankReplicas) -> list[str]:
        """A rank says what it will send digests of; returns what is to be told of it."""
        kind = (tuple(message.ranks), message.is_trained)
        known = self._sets.setdefault(message.identity, _Set(kind, message.slots))
        known.is_certain = known.is_certain and message.is_certain
        known.names = known.names or message.names
        declared = self._declared.setdefault(kind, {})
        before = declared.get(message.rank)
        declared[message.rank] = message.identity
        if before not in (None, message.identity, *declared.values()):
            self._sets.pop(str(before), None)
        if message.rank != 0 or self._is_introduced or not message.is_trained:
            return []
        self._is_introduced = True
        return [_introduced(message)]

    def unlike(self, message: RankDigests) -> list[str]:
        """Looks, before digests are taken in, whether ranks that should hold the same have other
        tensors after the same step; returns what is to be told of it, once."""
        known = self._sets.get(message.identity)
        if known is None or known.kind in self._unlike:
            return []
        newest = self._newest.setdefault(known.kind, {})
        newest[message.rank] = message.step, message.identity
        # What ranks have said last of other steps may be about to change.
        same = {rank: what for rank, (step, what) in newest.items() if step == message.step}
        if len(same) < len(known.ranks) or len(set(same.values())) == 1:
            return []
        self._unlike.add(known.kind)
        return [_unlike(same)]

    def add(self, message: RankDigests) -> Iterator[Replicas]:
        """Takes in the digests of one rank; yields the comparisons that this completes."""
        known = self._sets.get(message.identity)
        if known is None:
            return
        waiting = known.waiting
        arrived = waiting.setdefault(message.step, _Arrived(tuple(message.slots)))
        if arrived.slots != tuple(message.slots):
            return
        arrived.values[message.rank] = message.values
        if len(arrived.values) == self._num_expected(message.identity, known):
            # Ranks speak in order: what is older and not complete yet will never be.
            due = [step for step in waiting if step <= message.step]
        else:
            due = sorted(waiting)[: max(0, len(waiting) - MAX_WAITING)]
        for step in sorted(due):
            done = waiting.pop(step)
            if len(done.values) > 1:
                yield self._compared(message.identity, known, step, done)

    def restart(self) -> None:
        """Training went back: what has come in up to now is of no use."""
        for known in self._sets.values():
            known.waiting.clear()

    def _num_expected(self, identity: str, known: "_Set") -> int:
        declared = self._declared[known.kind]
        if len(declared) < len(known.ranks):
            return len(known.ranks)
        return sum(1 for one in declared.values() if one == identity)

    def _compared(self, identity: str, known: "_Set", step: int, arrived: "_Arrived") -> Replicas:
        numbers = known.numbers(arrived.slots)
        differing: list[Difference] = []
        num_differing = 0
        if len(set(arrived.values.values())) > 1:
            for index, (number, slot) in enumerate(numbers):
                camps = _camps(arrived.values, index)
                if len(camps) == 1:
                    continue
                num_differing += 1
                if len(differing) < MAX_DIFFERENCES:
                    name, kind = known.name(number)
                    differing.append(Difference(parameter=name, kind=kind, slot=slot, camps=camps))
        is_first = not known.seen_slots.issuperset(arrived.slots)
        known.seen_slots.update(arrived.slots)
        return Replicas(
            step=step,
            part=identity,
            slots=arrived.slots,
            ranks=tuple(sorted(arrived.values)),
            num_tensors=len(numbers),
            num_differing=num_differing,
            differing=tuple(differing),
            is_first=is_first,
            is_certain=known.is_certain,
            is_trained=known.kind[1],
        )


class _Arrived:
    """Digests of one set at one step."""

    def __init__(self, slots: tuple[int, ...]) -> None:
        self.slots = slots
        self.values: dict[int, bytes] = {}


class _Set:
    """Tensors that some ranks hold copies of."""

    def __init__(self, kind: _Kind, slots: Sequence[int]) -> None:
        self.kind = kind
        self.ranks = kind[0]
        self.slots = list(slots)
        self.names: list[tuple[str, str]] = []
        self.is_certain = True
        self.waiting: dict[int, _Arrived] = {}
        self.seen_slots: set[int] = set()

    def numbers(self, slots: Sequence[int]) -> list[tuple[int, int]]:
        """Numbers of the tensors in these slots, each with its slot."""
        wanted = set(slots)
        return [(number, slot) for number, slot in enumerate(self.slots) if slot in wanted]

    def name(self, number: int) -> tuple[str, str]:
        """Parameter and kind of a tensor."""
        return self.names[number] if number < len(self.names) else (f"number {number}", "tensor")


def _camps(values: Mapping[int, bytes], index: int) -> tuple[tuple[int, ...], ...]:
    """Ranks that hold the same of one tensor together, the most first."""
    start = index * DIGEST_BYTES
    camps: dict[bytes, list[int]] = {}
    for rank in sorted(values):
        camps.setdefault(values[rank][start : start + DIGEST_BYTES], []).append(rank)
    return tuple(sorted(map(tuple, camps.values()), key=lambda camp: (-len(camp), camp)))


def _introduced(message: RankReplicas) -> str:
    num, ranks = len(message.slots), named(message.ranks)
    num_parameters = sum(1 for _, kind in message.names if kind == "parameter")
    without = f" Not compared: {'; '.join(message.left_out)}." if message.left_out else ""
    return (
        f"Copies that must be equal bit for bit are compared every {message.every_steps} steps "
        f"between {ranks}: {num_parameters} parameters and {num - num_parameters} tensors "
        f"of optimizers.{without}"
    )


def _unlike(declared: Mapping[int, str]) -> str:
    groups: dict[str, list[int]] = {}
    for rank in sorted(declared):
        groups.setdefault(declared[rank], []).append(rank)
    told = " and ".join(f"[{numbers(ranks)}]" for ranks in groups.values())
    return (
        f"Ranks {told} should hold copies of the same tensors, but these differ in number, name, "
        "shape or in how they lie in memory: they are compared within each of these groups only."
    )
