"""How long ranks wait for gradient sync, as a quantile."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from slav1.metrics._histogram import Histogram, check_share
from slav1.sample import Sample

LOWEST_S = 1e-6
HIGHEST_S = 1e4


class SyncLatency(Histogram):
    """A quantile of the time that steps waited for gradient sync, in seconds.

    Times from a microsecond to 10,000 s in 1,152 buckets, so the figure is within 1 % of the
    true quantile of all values ever seen, on any number of ranks; shorter ones count as 0.

    Example:
        >>> waited = SyncLatency(quantile=0.5)
        >>> waited.update([0.010, 0.020, 0.400])
        >>> round(waited.compute().item(), 2)
        0.02
    """

    higher_is_better = False
    plot_lower_bound = 0.0

    def __init__(
        self, *, quantile: float = 0.99, relative_error: float = 0.01, **kwargs: Any
    ) -> None:
        """Starts empty.

        Args:
            quantile: Which one, from 0 to 1. Several share one state in a
                ``MetricCollection``.
            relative_error: Largest error of the figure, as a share of it.
            kwargs: As for every metric.
        """
        super().__init__(
            lowest=LOWEST_S, highest=HIGHEST_S, relative_error=relative_error, **kwargs
        )
        self.quantile = check_share("quantile", quantile)

    def update(self, sync_s: float | Tensor | Sequence[float] | Sample) -> None:
        """Takes in one or many times.

        Args:
            sync_s: Seconds; any shape. NaN is left out, and so is a ``Sample`` whose sync
                was not measured.
        """
        if isinstance(sync_s, Sample):
            if sync_s.sync_s is None:
                return
            sync_s = sync_s.sync_s
        self._count(self._numbers(sync_s))

    def compute(self) -> Tensor:
        """Returns the quantile in seconds; NaN without data."""
        return self._figure(self._quantile(self.quantile))
