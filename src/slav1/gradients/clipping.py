"""Clipping by what the norm usually is: how much a gradient is shortened, and what is learned."""

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

NUM_LEARNED = 25
"""Norms that are only learned from before any is clipped."""

MIN_NOISE_RATIO = 1e-3
"""Smallest noise of the norm to believe, as a share of its mean."""

_TINY = 1e-12
_T = TypeVar("_T")


class ClipStats(NamedTuple):
    """What is known about the norms: numbers, or the same on a device."""

    num: Any = 0.0
    mean: Any = 0.0
    variance: Any = 0.0


def adapted(
    stats: ClipStats, norm: Any, *, limit_sigmas: float, memory: float
) -> tuple[ClipStats, Any]:
    """Takes in one norm.

    A norm more than ``limit_sigmas`` above the mean is shortened, the further it stands out
    the nearer to the mean: to ``mean + limit_sigmas ** 2 / z`` standard deviations. It is
    learned from as it was shortened. One that is not finite changes nothing.

    Args:
        stats: What was known.
        norm: A number, or shape ``()`` on a device, where everything stays then.
        limit_sigmas: Above 0.
        memory: How much of the mean each norm leaves in place, from 0 to 1.

    Returns:
        What is known, and what to multiply the gradient with, from 0 to 1.

    Source:
        Kumar et al., "ZClip: Adaptive Spike Mitigation for LLM Pre-Training",
        arXiv:2504.02507, 2025; the form with the reciprocal of z.
    """
    deviation = stats.variance**0.5 + MIN_NOISE_RATIO * stats.mean
    z = (norm - stats.mean) / (deviation + _TINY)
    is_spike = (z > limit_sigmas) & (stats.num >= NUM_LEARNED)
    limit = stats.mean + limit_sigmas * limit_sigmas / (z + _TINY) * deviation
    used = _where(is_spike, limit, norm)
    # While learning all norms count alike.
    by_count = 1.0 / (stats.num + 1.0)
    weight = _where(by_count > 1.0 - memory, by_count, _like(by_count, 1.0 - memory))
    distance = used - stats.mean
    after = ClipStats(
        stats.num + 1.0,
        stats.mean + weight * distance,
        (1.0 - weight) * (stats.variance + weight * distance * distance),
    )
    is_finite = (norm - norm) == 0.0
    kept = ClipStats(*(_where(is_finite, new, old) for new, old in zip(after, stats, strict=True)))
    return kept, _where(is_spike & is_finite, used / (norm + _TINY), _like(norm, 1.0))


def on_device_of(stats: ClipStats, norm: Tensor) -> ClipStats:
    """The same numbers where a norm lies."""
    if isinstance(stats.mean, Tensor):
        return stats
    return ClipStats(*(torch.tensor(float(x), device=norm.device) for x in stats))


def to_plain(stats: ClipStats) -> list[float]:
    """The numbers, for a checkpoint; waits for a device."""
    return [float(number) for number in stats]


def _where(condition: Any, yes: _T, no: _T) -> _T:
    if isinstance(condition, Tensor):
        chosen: Any = torch.where(condition, yes, no)  # type: ignore[call-overload]
        return chosen  # type: ignore[no-any-return]
    return yes if condition else no


def _like(example: Any, number: float) -> Any:
    return torch.full_like(example, number) if isinstance(example, Tensor) else number
