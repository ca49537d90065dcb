"""Quantiles of any number of values in a state of fixed size."""

import math
from typing import Any

import torch
from torch import Tensor

from slav1.metrics._metric import ServiceMetric


class Histogram(ServiceMetric):
    """Counts values in logarithmic buckets, so that quantiles have a known relative error.

    Two histograms are merged by adding their counts, which loses nothing.

    Source:
        Masson, Rim, Lee, "DDSketch", Proceedings of the VLDB Endowment 12(12), 2019.
    """

    counts: Tensor

    def __init__(
        self, *, lowest: float, highest: float, relative_error: float, **kwargs: Any
    ) -> None:
        """Starts empty.

        Args:
            lowest: Values up to this one count as 0; above 0.
            highest: Values above this one count as this one.
            relative_error: Largest error of a quantile, as a share of it.
            kwargs: As for every metric.
        """
        super().__init__(**kwargs)
        if not 0 < relative_error < 1:
            raise ValueError(
                f"relative_error must be a share between 0 and 1, got {relative_error}."
            )
        self.relative_error = relative_error
        self._lowest, self._highest = lowest, highest
        self._log_growth = math.log((1.0 + relative_error) / (1.0 - relative_error))
        self._last = math.ceil(math.log(highest / lowest) / self._log_growth)
        # One place more, for what is no number.
        self.keep("counts", self._last + 2, torch.int64)

    def _count(self, values: Tensor) -> None:
        """Takes in numbers of 64 bits; NaN and what is under 0 is left out."""
        # A little under the edge, so that rounding can't lift an edge over itself.
        low = math.log(self._lowest) + 1e-9 * self._log_growth
        places = values.log().sub_(low).div_(self._log_growth).ceil_().clamp_(0, self._last)
        places = places.nan_to_num_(nan=self._last + 1).long()
        self.counts.index_add_(0, places, torch.ones_like(places))

    def _quantile(self, share: float) -> float:
        """The value that this share of all lies at or under, nearest rank; NaN if there is none."""
        upto = self.counts[:-1].cumsum(0).cpu()
        num_all = int(upto[-1])
        if num_all == 0:
            return math.nan
        rank = max(1, math.ceil(share * num_all - 1e-9))
        place = int(torch.searchsorted(upto, rank))
        if place == 0:
            return 0.0
        edge = self._lowest * math.exp(place * self._log_growth)
        return min(edge * (1.0 - self.relative_error), self._highest)


def check_share(name: str, share: float) -> float:
    """Returns a setting that must be a share.

    Raises:
        ValueError: If it is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"{name} must be a share from 0 to 1, got {share}.")
    return share
