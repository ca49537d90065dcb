"""Comparing what all ranks have of seeds, generators, settings and first weights."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from slav1.named_ranks import named
from slav1.seeds.choice import offset_of
from slav1.seeds.determinism import lacking

Moment = Literal["start", "repair", "resume", "rollback"]
"""When ranks are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a comparison of all ranks came to."""

    wrong: tuple[str, ...] = ()
    """What breaks the contract, in sentences."""

    noted: tuple[str, ...] = ()
    """What is worth knowing and breaks nothing."""

    at_fault: tuple[int, ...] = ()
    """Ranks that the first wrong is about, ascending; none if it is about all."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """What was compared, as plain values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a comparison is held against."""

    is_set: bool = False
    """Whether the contract has set the seeds, so that each rank has numbers of its own."""

    groups: Sequence[Sequence[int]] = ()
    """Ranks that draw the same numbers by design."""

    deterministic: bool = False
    """Whether the same step has to give the same bits twice."""


def judge(looks: Sequence[Mapping[str, Any]], promise: Promise, moment: Moment) -> Judged:
    """Compares what the ranks brought.

    What must be equal is weights that the wrapper has copied, settings that decide over
    bits, the seeds of samplers that share data out, and within a group the numbers that torch
    draws. What must differ, between ranks of
    different groups, is the state of each generator; that seeds differ is no fault.

    Args:
        looks: One of each rank, in rank order, as :class:`~slav1.seeds.Seeds` makes them.
        promise: What the contract owes.
        moment: When it is.
    """
    wrong: list[str] = []
    at_fault: tuple[int, ...] = ()
    for text, ranks in (
        *_weights(looks, moment),
        *_samplers(looks),
        *_settings(looks),
        *(_not_deterministic(looks) if promise.deterministic else ()),
    ):
        at_fault = at_fault if wrong else ranks
        wrong.append(text)
    unequal = _unequal(looks, promise)
    if unequal and promise.is_set:
        at_fault = at_fault if wrong else ()
        wrong += unequal
        unequal = []
    twins = _identical(looks, promise)
    if twins and promise.is_set:
        wrong += twins
        twins = []
    return Judged(
        wrong=tuple(wrong),
        noted=tuple(unequal + twins + _about_seeds(looks, promise)),
        at_fault=at_fault,
        facts=_facts(looks),
    )


def apart(values: Sequence[Any]) -> tuple[int, ...]:
    """Ranks whose value is another than that of more than half of them; of those of rank 0
    if no value has such a majority."""
    counts: dict[Any, int] = defaultdict(int)
    for value in values:
        counts[value] += 1
    usual = next((value for value, num in counts.items() if 2 * num > len(values)), values[0])
    return tuple(rank for rank, value in enumerate(values) if value != usual)


def _weights(
    looks: Sequence[Mapping[str, Any]], moment: Moment
) -> list[tuple[str, tuple[int, ...]]]:
    ranks = apart([look["weights"] for look in looks])
    if not ranks:
        return []
    tensors = [look.get("tensors") or {} for look in looks]
    name = next((n for n in tensors[0] if len({each.get(n) for each in tensors}) > 1), None)
    where = "" if name is None else f", first in parameter {name}"
    why = (
        "though the wrapper copies rank 0's: they were changed after it, or nothing copies them"
        if moment == "start"
        else f"after the {moment}"
    )
    text = f"The weights of {named(ranks)} differ from those of the other ranks{where}, {why}."
    # Of two that differ it is known which is right only where one was made from the other.
    return [(text, ranks if moment == "start" or len(looks) > 2 else ())]


def _samplers(looks: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    ranks = apart([tuple(look["samplers"]) for look in looks])
    if not ranks:
        return []
    text = (
        f"The distributed samplers of {named(ranks)} have other seeds than those of the other "
        "ranks: some items are trained on twice and others never. Give all the same seed."
    )
    return [(text, ranks)]


def _settings(looks: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    found = []
    for name in looks[0]["settings"]:
        values = [look["settings"].get(name) for look in looks]
        ranks = apart(values)
        if ranks:
            usual = next(v for rank, v in enumerate(values) if rank not in ranks)
            text = f"{name} is {values[ranks[0]]} on {named(ranks)} and {usual} on the others."
            found.append((text, ranks))
    return found


def _not_deterministic(looks: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, look in enumerate(looks):
        for each in lacking(look["settings"], is_cuda=look["is_cuda"], world_size=len(looks)):
            ranks_of[each].append(rank)
    return [
        (
            f"seeds.deterministic is true, but {text} ({named(ranks)}).",
            () if len(ranks) == len(looks) else tuple(ranks),
        )
        for text, ranks in ranks_of.items()
    ]


def _identical(looks: Sequence[Mapping[str, Any]], promise: Promise) -> list[str]:
    """Generators that draw the same on ranks of different groups, in a sentence for each set of
    ranks."""
    kinds: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in sorted({name for look in looks for name in look["generators"]}):
        ranks_of: dict[str, list[int]] = defaultdict(list)
        for rank, look in enumerate(looks):
            if name in look["generators"]:
                ranks_of[look["generators"][name]].append(rank)
        for ranks in ranks_of.values():
            if len({offset_of(rank, promise.groups) for rank in ranks}) > 1:
                kinds[tuple(ranks)].append(name)
    return [
        f"Identical generators on {named(ranks)}: {', '.join(names)}. They draw the same dropout "
        "masks, noise or augmentations."
        for ranks, names in kinds.items()
    ]


def _unequal(looks: Sequence[Mapping[str, Any]], promise: Promise) -> list[str]:
    """Generators of torch that draw other numbers on ranks of one group, in a sentence for each
    group."""
    found = []
    for group in promise.groups:
        generators = [looks[rank]["generators"] for rank in group]
        names = [
            name
            for name in ("torch", "cuda")
            if len({each[name] for each in generators if name in each}) > 1
        ]
        if names:
            found.append(
                f"The generators of {named(group)}, which are one group, differ: "
                f"{', '.join(names)}. They draw other dropout masks for one model."
            )
    return found


def _about_seeds(looks: Sequence[Mapping[str, Any]], promise: Promise) -> list[str]:
    seeds = [look["script_seed"] for look in looks]
    if promise.is_set:
        return []
    if all(seed is None for seed in seeds):
        return ["Nobody has seeded torch, so the random numbers of this run can't be had again."]
    if len(set(seeds)) > 1:
        return ["The script gives each rank a seed of its own."]
    return []


def _facts(looks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kinds = sorted({name for look in looks for name in look["generators"]})
    return {
        "script_seeds": [look["script_seed"] for look in looks],
        "generators": {k: [look["generators"].get(k, "") for look in looks] for k in kinds},
        "weights": [look["weights"] for look in looks],
        "samplers": looks[0]["samplers"],
        "settings": looks[0]["settings"],
    }
