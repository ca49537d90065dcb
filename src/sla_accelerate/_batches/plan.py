"""How a pass over a loader begins in the middle, and where its order comes from."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sla_accelerate._batches import noise
from sla_accelerate._batches.noise import Noise


class Plan(NamedTuple):
    """How a pass begins in the middle."""

    epoch: int
    """The pass, from 0."""

    num_handed: int = 0
    """Batches of it that the loop has had already, left out ones included."""

    order: int | None = None
    """Check sum of their order; None if it is not known."""

    start: Noise | None = None
    """States before the pass."""

    generators: tuple[Tensor, ...] = ()
    """States of the loader's own generators before the pass."""

    fetch: Noise | None = None
    """States before the next batch was fetched."""

    now: Noise | None = None
    """States at the checkpoint."""

    seeds: tuple[int, ...] = ()
    """First seeds of the samplers that have one."""

    is_at_end: bool = False
    """Whether the pass had nothing left."""

    is_reused: bool = False
    """Whether the loader's worker processes were there before the pass."""


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators that a loader and its samplers have for themselves."""
    found: list[torch.Generator] = []
    for part in _parts(loader):
        for name in ("generator", "synchronized_generator"):
            value = getattr(part, name, None)
            if isinstance(value, torch.Generator) and not any(value is one for one in found):
                found.append(value)
    return found


def seeds_of(loader: Any) -> tuple[int, ...]:
    """First seeds of the samplers that have one."""
    return tuple(int(each.initial_seed) for each in _seeded(loader))


def set_sources(loader: Any, plan: Plan) -> None:
    """Puts the loader's own generators and seeds where ``plan`` says.

    Those that are not there yet have drawn nothing; the check of the order looks after them.
    """
    generators, seeded = generators_of(loader), _seeded(loader)
    if len(generators) == len(plan.generators):
        for generator, state in zip(generators, plan.generators, strict=True):
            generator.set_state(state)
    if len(seeded) == len(plan.seeds):
        for sampler, seed in zip(seeded, plan.seeds, strict=True):
            sampler.initial_seed = seed


def to_plain(plan: Plan) -> dict[str, Any]:
    """The position as plain values for JSON; without ``now``, which the host saves."""
    return {
        "epoch": plan.epoch,
        "num_handed": plan.num_handed,
        "order": plan.order,
        "start": None if plan.start is None else noise.to_plain(plan.start),
        "generators": [noise.tensor_to_text(each) for each in plan.generators],
        "fetch": None if plan.fetch is None else noise.to_plain(plan.fetch),
        "seeds": list(plan.seeds),
        "is_at_end": plan.is_at_end,
        "is_reused": plan.is_reused,
    }


def from_plain(plain: dict[str, Any]) -> Plan:
    """Reads what :func:`to_plain` made."""
    start, fetch = plain["start"], plain["fetch"]
    return Plan(
        epoch=plain["epoch"],
        num_handed=plain["num_handed"],
        order=plain["order"],
        start=None if start is None else noise.from_plain(start),
        generators=tuple(noise.tensor_from_text(each) for each in plain["generators"]),
        fetch=None if fetch is None else noise.from_plain(fetch),
        seeds=tuple(plain["seeds"]),
        is_at_end=plain["is_at_end"],
        is_reused=plain["is_reused"],
    )


def _seeded(loader: Any) -> list[Any]:
    return [
        part
        for part in _parts(loader)
        if isinstance(getattr(part, "epoch", None), int)
        and isinstance(getattr(part, "initial_seed", None), int)
    ]


def _parts(loader: Any) -> list[Any]:
    """The loader, the one underneath, and all samplers in them."""
    todo = [loader.base_dataloader, loader]
    for part in todo:
        for name in ("batch_sampler", "sampler"):
            inner = getattr(part, name, None)
            if inner is not None and not any(inner is one for one in todo):
                todo.append(inner)
    return todo
