"""How fast memory grows."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from slav1.metrics._metric import ServiceMetric
from slav1.sample import Sample

# Places in the state.
_NUM, _STEP, _MIB, _SPREAD = range(4)


class MemorySlope(ServiceMetric):
    """Growth of memory in MiB per step: the least-squares slope over all steps since a reset.

    A figure for dashboards, not a test: batches of varying size make it noisy, and one rise,
    as at the first evaluation, shows as a slope for long; the rule ``memory_drift`` tells
    these from a leak. Several ranks: the mean of their slopes, as long as all report the same
    steps.

    Example:
        >>> grows = MemorySlope()
        >>> for step in range(100):
        ...     grows.update(1000.0 + 0.5 * step, step)
        >>> round(grows.compute().item(), 6)
        0.5

    Source:
        Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance", The American
        Statistician 37(3), 1983, for merging without cancellation.
    """

    higher_is_better = False
    moments: Tensor

    def __init__(self, **kwargs: Any) -> None:
        """Starts empty; takes what every metric takes."""
        super().__init__(**kwargs)
        self.keep("moments", 5, torch.float64, reduce=_merged)

    def update(
        self,
        memory_mib: float | Tensor | Sequence[float] | Sample,
        step: int | Sequence[int] | None = None,
    ) -> None:
        """Takes in one or many readings.

        Args:
            memory_mib: Memory in use, in MiB. One that is not finite is left out, and so is
                a ``Sample`` that knows none.
            step: Optimizer step of each, from 0; None for the steps that follow those seen.
                A ``Sample`` has its own.
        """
        if isinstance(memory_mib, Sample):
            step = memory_mib.step
            memory_mib = math.nan if memory_mib.allocated_mib is None else memory_mib.allocated_mib
        values = self._numbers(memory_mib)
        if step is None:
            steps = self.moments[_NUM] + torch.arange(len(values), device=self.device)
        else:
            steps = self._numbers(step)
        readings = torch.zeros((len(values), 5), dtype=torch.float64, device=self.device)
        readings[:, _NUM] = values.isfinite()
        readings[:, _STEP] = steps
        readings[:, _MIB] = values.nan_to_num(0.0, 0.0, 0.0)
        self.moments.copy_(_merged(torch.cat((self.moments[None], readings))))

    def compute(self) -> Tensor:
        """Returns the slope in MiB per step; NaN before two different steps were seen."""
        _, _, _, spread, joint = self.moments.tolist()
        return self._figure(joint / spread if spread > 0.0 else math.nan)


def _merged(parts: Tensor) -> Tensor:
    """Moments of several parts together.

    Args:
        parts: Shape ``(num_parts, 5)``: number of readings, mean step, mean MiB, summed
            squared distance of the steps from their mean, the same jointly with MiB.
    """
    num = parts[:, :1]
    num_all = num.sum(0)
    middle = (num * parts[:, _STEP : _MIB + 1]).sum(0) / num_all.clamp(min=1.0)
    off = parts[:, _STEP : _MIB + 1] - middle
    spreads = (parts[:, _SPREAD:] + num * off[:, :1] * off).sum(0)
    return torch.cat((num_all, middle, spreads))
