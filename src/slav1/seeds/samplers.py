"""Samplers that share data out among ranks: their seeds, and whether they move on each epoch."""

from collections.abc import Iterable, Iterator
from typing import Any


def sampler_seeds(loaders: Iterable[Any]) -> Iterator[int]:
    """Seeds of the distributed samplers of some loaders; they must be equal on all ranks."""
    for sampler in _distributed(loaders):
        if isinstance(seed := getattr(sampler, "seed", None), int):
            yield seed


def repeats_its_order(loaders: Iterable[Any], epoch: int) -> bool:
    """Whether a distributed sampler that shuffles was not told of the epoch that begins.

    Args:
        loaders: The loaders.
        epoch: The epoch, from 0.
    """
    return any(
        getattr(sampler, "shuffle", False) and getattr(sampler, "epoch", epoch) != epoch
        for sampler in _distributed(loaders)
    )


def _distributed(loaders: Iterable[Any]) -> Iterator[Any]:
    for loader in loaders:
        inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        for sampler in (getattr(loader, "sampler", None), inner):
            if hasattr(sampler, "num_replicas"):
                yield sampler
                break
