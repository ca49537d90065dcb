"""Shares of what went well: beats in time, saves that became checkpoints."""

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from slav1.detectors._beats import answers
from slav1.detectors._bounds import clopper_pearson
from slav1.metrics._histogram import check_share
from slav1.metrics._metric import ServiceMetric
from slav1.sample import Pulse, Save
from slav1.saves import CONFIDENCE

Bound = Literal["lower", "upper"]


class _Rate(ServiceMetric):
    """A share of all tries, or a bound of the rate behind it."""

    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    # A state's name of its own: a MetricCollection takes metrics with equal states for one.
    _STATE: ClassVar[str]

    def __init__(
        self, *, bound: Bound | None = None, confidence: float = CONFIDENCE, **kwargs: Any
    ) -> None:
        """Starts with no try.

        Args:
            bound: ``lower`` or ``upper`` for the one-sided bound of Clopper and Pearson
                instead of the share itself.
            confidence: Chance that the true rate is on the right side of the bound.
            kwargs: As for every metric.
        """
        super().__init__(**kwargs)
        if bound not in (None, "lower", "upper"):
            raise ValueError(f'bound must be "lower", "upper" or None, got {bound!r}.')
        self.bound = bound
        self.confidence = check_share("confidence", confidence)
        self.keep(self._STATE, 2, torch.int64)

    def _count(self, num_good: float, num_all: int) -> None:
        whole = int(num_good)
        if whole != num_good or not 0 <= whole <= num_all:
            raise ValueError(
                f"The good ones must be a whole number, 0 to all {num_all}, got {num_good}: count "
                "both in the same unit, and give no share."
            )
        counts: Tensor = getattr(self, self._STATE)
        counts[0] += whole
        counts[1] += num_all

    def compute(self) -> Tensor:
        """Returns the share or the bound, from 0 to 1; NaN without any try."""
        num_good, num_all = getattr(self, self._STATE).tolist()
        if num_all == 0:
            return self._figure(math.nan)
        if self.bound is None:
            return self._figure(num_good / num_all)
        lower, upper = clopper_pearson(num_good, num_all, confidence=self.confidence)
        return self._figure(lower if self.bound == "lower" else upper)


class Availability(_Rate):
    """Share of beats, or of steps, that came in time.

    The bounds take beats for independent. Outages come in one piece, so they are too narrow
    where single beats are counted; count longer ones, say minutes, for bounds to rely on.

    Example:
        >>> available = Availability()
        >>> available.update(999, 1000)
        >>> available.compute().item()
        0.999
    """

    _STATE = "num_beats"

    def update(self, in_time: bool | int | Pulse, num_beats: int = 1) -> None:
        """Takes in beats.

        Args:
            in_time: How many of them came in time; True or False for a single one. Of a
                ``Pulse`` whether its process could answer.
            num_beats: How many there were.
        """
        if isinstance(in_time, Pulse):
            in_time = answers(in_time)
        self._count(in_time, num_beats)


class CheckpointSuccess(_Rate):
    """Share of saves that became checkpoints, by the definition of the rule ``ckpt_success``.

    All ranks save together: count each save on one rank.

    Example:
        >>> kept = CheckpointSuccess(bound="lower")
        >>> kept.update(1000, 1000)
        >>> round(kept.compute().item(), 3)
        0.997
    """

    _STATE = "num_saves"

    def update(self, succeeded: bool | int | Save, num_saves: int = 1) -> None:
        """Takes in saves.

        Args:
            succeeded: How many of them became checkpoints; True or False for a single one.
            num_saves: How many were tried.
        """
        if isinstance(succeeded, Save):
            succeeded = succeeded.succeeded
        self._count(succeeded, num_saves)
