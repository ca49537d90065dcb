"""How all ranks come to the same first weights: one seed before they are made, or a copy after."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from slav1.seeds.choice import Choice
from slav1.seeds.generators import seed_all, seed_all_but_torch


def set_first(
    choice: Choice, *, script: int | None, is_alone: bool, place: Sequence[int] = ()
) -> bool:
    """Gives this rank the seed that weights are made from; returns whether it had another.

    A seed that the script has given torch stays as it is, numbers drawn since included; that
    of Python and numpy nobody can ask for, so of several ranks each gets one. A single process
    that asks for nothing keeps the numbers that it has always had.

    Args:
        choice: The global seed.
        script: Seed that the script has set on this rank; None if it has not.
        is_alone: Whether the job has one rank.
        place: What :func:`place_of` gave rank 0, from where this rank then goes on.
    """
    if choice.source == "script" and script == choice.seed:
        if not is_alone:
            seed_all_but_torch(choice.seed)
        return False
    if choice.source == "made" and is_alone:
        return False
    seed_all(choice.seed)
    if place:
        torch.set_rng_state(torch.tensor(place, dtype=torch.uint8))
    return True


def place_of(choice: Choice) -> list[int]:
    """Where rank 0 is in the numbers of torch, if it goes on with those of its script, as the state
    of the generator; empty if all ranks begin anew."""
    return torch.get_rng_state().tolist() if choice.source == "script" else []


def copy_first_weights(weights: Mapping[str, Tensor]) -> None:
    """Collective of torch, over all ranks. Gives all ranks rank 0's values, in place.

    Args:
        weights: The same names in the same order on all ranks.
    """
    for tensor in weights.values():
        dist.broadcast(tensor.detach(), src=0)
