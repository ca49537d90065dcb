"""Where the seed of a run comes from, and what each rank makes of it."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from slav1.contract import SeedSettings
from slav1.seeds.generators import NUM_SEEDS

VARIABLE = "SLA_SEED"
"""Environment variable that holds a seed for the run."""

Source = Literal["contract", "script", "SLA_SEED", "earlier start", "made"]
"""Who has chosen a seed."""


class Choice(NamedTuple):
    """The global seed of a run."""

    seed: int
    """From 0, below 4294967296."""

    source: Source
    """Where it comes from."""


def is_set(settings: SeedSettings, environment: Mapping[str, str]) -> bool:
    """Whether the contract sets seeds, and does not only look at them.

    A seed in the environment is a wish for it, unless the contract leaves seeds alone.

    Raises:
        ValueError: If ``SLA_SEED`` is no seed; on all ranks then, as all of them look.
    """
    if settings.mode != "off" and VARIABLE in environment:
        _read(environment[VARIABLE])
        return True
    return settings.mode == "set"


def choose(
    settings: SeedSettings,
    environment: Mapping[str, str],
    *,
    script: int | None,
    earlier: int | None,
    job: str,
    time_ns: int,
) -> Choice:
    """Chooses the global seed, on rank 0.

    What stands in code wins over the environment: the contract's seed, then the script's own,
    then ``SLA_SEED``, then that of an earlier start of the run; else one is made.

    Args:
        settings: The contract's clause.
        environment: Environment variables.
        script: Seed that the script has set by itself; None if it has not.
        earlier: Seed of an earlier start of this run; None if there was none.
        job: Says which job it is.
        time_ns: Wall clock, in nanoseconds.

    Raises:
        ValueError: If ``SLA_SEED`` is no seed.
    """
    if settings.seed is not None:
        return Choice(settings.seed, "contract")
    if script is not None:
        return Choice(script % NUM_SEEDS, "script")
    if VARIABLE in environment:
        return Choice(_read(environment[VARIABLE]), "SLA_SEED")
    if earlier is not None:
        return Choice(earlier, "earlier start")
    return Choice(make_seed(job, time_ns), "made")


def make_seed(job: str, time_ns: int) -> int:
    """Makes a seed of the SHA-256 of a job's name and a time stamp.

    Example:
        >>> make_seed("job", 1) == make_seed("job", 1) != make_seed("job", 2)
        True
    """
    digest = hashlib.sha256(f"{job}\n{time_ns}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def offset_of(rank: int, groups: Sequence[Sequence[int]]) -> int:
    """What a rank adds to the global seed for its data, augmentation and dropout.

    Args:
        rank: Global rank.
        groups: Ranks that draw the same numbers, as those that share one model; each takes
            the offset of its lowest rank.

    Example:
        >>> [offset_of(rank, [[0, 1], [2, 3]]) for rank in range(5)]
        [0, 0, 2, 2, 4]
    """
    return min(next((group for group in groups if rank in group), [rank]))


def _read(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if not 0 <= seed < NUM_SEEDS:
        raise ValueError(
            f"{VARIABLE}={text} must be a whole number from 0 to {NUM_SEEDS - 1}; it is the seed "
            "of the run."
        )
    return seed
