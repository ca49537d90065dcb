"""The stability contract in Lightning: one callback, and strategies that carry it by name."""

from sla_lightning.actions import JobEndedError
from sla_lightning.callback import SLACallback
from sla_lightning.checkpoint_io import SLACheckpointIO
from sla_lightning.strategies import (
    SLADDPStrategy,
    SLADeepSpeedStrategy,
    SLAFSDPStrategy,
    SLAModelParallelStrategy,
)

__all__ = [
    "JobEndedError",
    "SLACallback",
    "SLACheckpointIO",
    "SLADDPStrategy",
    "SLADeepSpeedStrategy",
    "SLAFSDPStrategy",
    "SLAModelParallelStrategy",
]
