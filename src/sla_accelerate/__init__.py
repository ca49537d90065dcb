"""The stability contract in Accelerate: one changed line."""

from sla_accelerate._order import DataOrderError
from sla_accelerate._restore import LoadFailedError
from sla_accelerate.accelerator import SLAAccelerator
from sla_accelerate.actions import TrainingStoppedError

__all__ = ["DataOrderError", "LoadFailedError", "SLAAccelerator", "TrainingStoppedError"]
