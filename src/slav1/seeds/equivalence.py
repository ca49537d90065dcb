"""Resume equivalence: whether a run that was stopped and resumed equals an unbroken one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from slav1.checkpoint.fingerprints import fingerprint

Trace: TypeAlias = Mapping[int, Any]
"""What a run did, by step: losses, batches, random numbers, weights, in any nesting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """How a resumed run compares with an unbroken one."""

    num_compared: int
    """Steps that both made after the resume."""

    differing: Mapping[int, str]
    """What differs, by step, in words; empty if nothing does."""

    @property
    def is_equal(self) -> bool:
        """Whether there was anything to compare, and every bit of it is the same."""
        return self.num_compared > 0 and not self.differing


def compare_traces(unbroken: Trace, resumed: Trace) -> Equivalence:
    """Compares the steps of a resumed run with those of an unbroken one, bit for bit.

    A step that only the resumed run made differs, and so does one after its first that it
    left out.

    Args:
        unbroken: What the unbroken run did.
        resumed: What the run did from its resume on.

    Example:
        >>> compare_traces({0: 1.0, 1: 0.5, 2: 0.25}, {1: 0.5, 2: 0.3}).differing
        {2: '0.25 became 0.3'}
    """
    first = min(resumed, default=0)
    steps = sorted(set(resumed) | {step for step in unbroken if step >= first})
    differing: dict[int, str] = {}
    for step in steps:
        if step not in unbroken or step not in resumed:
            differing[step] = (
                f"only the {'unbroken' if step in unbroken else 'resumed'} run made it"
            )
        elif _bits(unbroken[step]) != _bits(resumed[step]):
            differing[step] = f"{unbroken[step]!r:.200} became {resumed[step]!r:.200}"
    return Equivalence(num_compared=len(set(unbroken) & set(resumed)), differing=differing)


def check_resume(
    train: Callable[[int, bool], Trace], *, num_steps: int, stop_after: int
) -> Equivalence:
    """Collective if training is. Trains three times and compares the resumed run.

    ``train`` must begin each time as a new process would: seeds, model and optimizer made
    anew. Its checkpoints of the second run must be what the third goes on from, and those of
    the first must not.

    Args:
        train: Takes how many steps to make in all and whether to resume; returns what the run
            did, by step.
        num_steps: Steps of the whole run.
        stop_after: Steps after which the second run ends; it must have saved by then.

    Raises:
        ValueError: If the run would not be stopped half-way.
    """
    if not 0 < stop_after < num_steps:
        raise ValueError(f"stop_after must be 1 to {num_steps - 1}, got {stop_after}.")
    unbroken = train(num_steps, False)
    train(stop_after, False)
    return compare_traces(unbroken, train(num_steps, True))


def _bits(value: Any) -> Any:
    """Something that is equal for equal bits: a NaN equals itself, 0.0 is not -0.0."""
    if isinstance(value, Tensor):
        return fingerprint(value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Mapping):
        return {key: _bits(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_bits(part) for part in value]
    return value
