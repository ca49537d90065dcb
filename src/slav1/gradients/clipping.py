"""Clipping by what the norm usually is: how much a gradient is shortened, and what is learned."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from slav1.contract.settings import GradientSettings

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
    # After gradients that were all zero nothing is known of what is usual.
    is_spike = (z > limit_sigmas) & (stats.num >= NUM_LEARNED) & (stats.mean > 0.0)
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


class Shortener:
    """Shortens gradients by what their norm usually is, or to a norm that it is told."""

    def __init__(self, settings: GradientSettings) -> None:
        """Starts with nothing learned.

        Args:
            settings: The contract's.
        """
        self._settings = settings
        self._is_adaptive = settings.clip == "adaptive"
        self._stats = ClipStats()

    @property
    def is_adaptive(self) -> bool:
        """Whether every norm is needed."""
        return self._is_adaptive

    def shorten(self, gradients: list[Tensor], norm: Any, max_norm: float) -> None:
        """Multiplies gradients with whatever clipping asks for.

        Args:
            gradients: Changed in place, where they lie.
            norm: Theirs, on the host or on their device.
            max_norm: What to shorten to in any case; 0 for nothing.
        """
        factor: Any = 1.0
        if self._is_adaptive:
            factor = self._adaptive(norm)
        if max_norm > 0.0:
            limit = max_norm / (norm + 1e-6)
            factor = _smaller(limit, factor)
        if isinstance(factor, Tensor) or factor < 1.0:
            torch._foreach_mul_(gradients, factor)

    def state(self) -> list[float]:
        """What is learned, for a checkpoint; waits for a device."""
        return [float(number) for number in self._stats]

    def load(self, state: Sequence[float]) -> None:
        """Goes on from :meth:`state`."""
        self._stats = ClipStats(*state)

    def _adaptive(self, norm: Any) -> Any:
        if isinstance(norm, Tensor) and not isinstance(self._stats.mean, Tensor):
            self._stats = ClipStats(
                *(torch.tensor(float(x), device=norm.device) for x in self._stats)
            )
        self._stats, factor = adapted(
            self._stats,
            norm,
            limit_sigmas=self._settings.clip_sigmas,
            memory=self._settings.clip_memory,
        )
        return factor


def _smaller(one: Any, other: Any) -> Any:
    if isinstance(one, Tensor):
        return one.clamp(max=other)
    return min(one, other)


def _where(condition: Any, yes: _T, no: _T) -> _T:
    if isinstance(condition, Tensor):
        chosen: Any = torch.where(condition, yes, no)  # type: ignore[call-overload]
        return chosen  # type: ignore[no-any-return]
    return yes if condition else no


def _like(example: Any, number: float) -> Any:
    return torch.full_like(example, number) if isinstance(example, Tensor) else number
