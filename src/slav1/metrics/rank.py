"""The figures of one rank while it trains, from its own flight ring."""

import math
from collections.abc import Sequence
from time import monotonic

from slav1.metrics.loss_variance import LossVariance
from slav1.metrics.memory_slope import MemorySlope
from slav1.metrics.sync_latency import SyncLatency
from slav1.metrics.useful_time import UsefulTimeRatio
from slav1.recorder import Recorder, RingReader
from slav1.sample import Sample


class RankFigures:
    """Sums up what the recorder of this rank has written, in the trainer, a few times a minute.

    No communication, and no state in checkpoints: the figures are those of this process since
    it began to train.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Starts with what is written from now on."""
        self._reader: RingReader = recorder.reader()
        self._latency, self._variance = SyncLatency(), LossVariance()
        self._slope, self._useful = MemorySlope(), UsefulTimeRatio()
        self._read_at_s = monotonic()
        self._newest_step = -1

    def read(self) -> dict[str, float]:
        """Takes in the steps since the last call.

        Returns:
            ``sync_p99_s``, ``loss_variance``, ``memory_slope_mib`` and ``useful_time_ratio``;
            those that nothing is known of are left out. A step that is made again after a
            rollback is no useful time.
        """
        now_s = monotonic()
        samples = list(self._reader.new_samples())
        feed(samples, self._latency, self._variance, self._slope)
        wall_s, self._read_at_s = now_s - self._read_at_s, now_s
        useful_s = sum(s.step_time_s or 0.0 for s in samples if s.step > self._newest_step)
        # The record of a step may come later than its time.
        self._useful.update(min(useful_s, wall_s), wall_s)
        self._newest_step = max([self._newest_step, *(s.step for s in samples)])
        metrics = {
            "sync_p99_s": self._latency,
            "loss_variance": self._variance,
            "memory_slope_mib": self._slope,
            "useful_time_ratio": self._useful,
        }
        # Each rank by itself: `compute` would wait for the others.
        figures = {name: metric.figure() for name, metric in metrics.items()}
        return {name: value for name, value in figures.items() if not math.isnan(value)}


def feed(
    samples: Sequence[Sample], latency: SyncLatency, variance: LossVariance, slope: MemorySlope
) -> None:
    """Shows samples of one rank, in the order of their steps, to the metrics of steps.

    Args:
        samples: Those of warming up count for the loss only.
        latency: Is shown ``sync_s``.
        variance: Is shown ``loss``.
        slope: Is shown ``allocated_mib``.
    """
    warm = [sample for sample in samples if not sample.is_warmup]
    latency.update([s.sync_s for s in warm if s.sync_s is not None])
    variance.update([math.nan if s.loss is None else s.loss for s in samples])
    readings = [(s.allocated_mib, s.step) for s in warm if s.allocated_mib is not None]
    slope.update([mib for mib, _ in readings], [step for _, step in readings])
