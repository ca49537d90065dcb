"""The service-level figures as ``torchmetrics`` metrics.

They are fed by whoever has the numbers (a training loop, a callback, :func:`of_run`), merge over
ranks, lie in checkpoints and log through the user's own logger. Only this package imports
torchmetrics.
"""

from slav1.metrics.loss_variance import LossVariance
from slav1.metrics.memory_slope import MemorySlope
from slav1.metrics.rank import RankFigures
from slav1.metrics.rates import Availability, CheckpointSuccess
from slav1.metrics.run import of_run
from slav1.metrics.saving import gather_into
from slav1.metrics.sync_latency import SyncLatency
from slav1.metrics.useful_time import UsefulTimeRatio

__all__ = [
    "Availability",
    "CheckpointSuccess",
    "LossVariance",
    "MemorySlope",
    "RankFigures",
    "SyncLatency",
    "UsefulTimeRatio",
    "gather_into",
    "of_run",
]
