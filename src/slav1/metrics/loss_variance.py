"""How noisy the loss is around its trend."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from slav1.metrics._histogram import Histogram
from slav1.sample import Sample

LOWEST = 1e-12
HIGHEST = 1e12
# Median of the absolute difference of two independent normal numbers of variance 1.
MEDIAN_DIFFERENCE = 0.6744897501960817 * math.sqrt(2.0)


class LossVariance(Histogram):
    """Variance of the loss around its own trend, over all steps since the last reset.

    Taken from the median size of the differences between successive losses of a rank: a
    trend hardly touches them, and single spikes don't move their median. It equals the
    variance where the noise is normal and independent from step to step; where successive
    losses go together it is smaller. Several ranks: the noise of one rank's loss. The
    difference to the rule ``loss_variance``: that one judges step by step and forgets, this
    one sums a whole run or epoch up. Within 2 % (twice ``relative_error``).

    Example:
        >>> noise = LossVariance()
        >>> noise.update([2.0, 2.1, 2.0, 2.1])
        >>> round(noise.compute().item(), 3)
        0.011
    """

    higher_is_better = False
    plot_lower_bound = 0.0
    last_loss: Tensor

    def __init__(self, *, relative_error: float = 0.01, **kwargs: Any) -> None:
        """Starts empty.

        Args:
            relative_error: Largest error of the standard deviation, as a share of it.
            kwargs: As for every metric.
        """
        super().__init__(lowest=LOWEST, highest=HIGHEST, relative_error=relative_error, **kwargs)
        self.keep("last_loss", 1, torch.float64, fill=math.nan, reduce=_no_last)

    def update(self, loss: float | Tensor | Sequence[float] | Sample) -> None:
        """Takes in one loss, or several in the order of their steps.

        Args:
            loss: On this rank. One that is not finite is left out together with the
                differences to its neighbours; so is a ``Sample`` without a loss.
        """
        if isinstance(loss, Sample):
            loss = math.nan if loss.loss is None else loss.loss
        losses = self._numbers(loss)
        chain = torch.cat((self.last_loss, torch.where(losses.isfinite(), losses, math.nan)))
        self._count((chain[1:] - chain[:-1]).abs_())
        self.last_loss.copy_(chain[-1:])

    def compute(self) -> Tensor:
        """Returns the variance, in squared units of loss; NaN before the second loss."""
        return self._figure((self._quantile(0.5) / MEDIAN_DIFFERENCE) ** 2)


def _no_last(stacked: Tensor) -> Tensor:
    """Losses of different ranks, or parts of a run, are no neighbours."""
    return torch.full_like(stacked[0], math.nan)
