"""How much of the time led somewhere."""

import math
from typing import Any

import torch
from torch import Tensor

from slav1.metrics._metric import ServiceMetric


class UsefulTimeRatio(ServiceMetric):
    """Useful time over wall time, also called effective training time ratio (ETTR).

    Useful is the time of steps that count in the end: not start-up, not waiting for a fault
    to be found, not steps that are made a second time. Several ranks, or parts of a run: the
    ratio of the sums.

    Example:
        >>> useful = UsefulTimeRatio()
        >>> useful.update(useful_s=54.0, wall_s=60.0)
        >>> useful.compute().item()
        0.9
    """

    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    seconds: Tensor

    def __init__(self, **kwargs: Any) -> None:
        """Starts empty; takes what every metric takes."""
        super().__init__(**kwargs)
        self.keep("seconds", 2, torch.float64)

    def update(self, useful_s: float, wall_s: float) -> None:
        """Takes in a stretch of time.

        Args:
            useful_s: Seconds of it that count.
            wall_s: All of it, in seconds.

        Raises:
            ValueError: If there is more useful time than time.
        """
        # Two clocks may differ by a little.
        if not 0.0 <= useful_s <= wall_s * 1.001 + 0.001:
            raise ValueError(
                f"useful_s must be 0 to all {wall_s} s, got {useful_s}: give both for the same "
                "stretch of time."
            )
        self.seconds[0] += min(useful_s, wall_s)
        self.seconds[1] += wall_s

    def compute(self) -> Tensor:
        """Returns the ratio, from 0 to 1; NaN without data."""
        useful_s, wall_s = self.seconds.tolist()
        return self._figure(useful_s / wall_s if wall_s > 0.0 else math.nan)
