"""The stability contract in Accelerate: one changed line."""

from sla_accelerate.accelerator import SLAAccelerator
from sla_accelerate.actions import TrainingStoppedError

__all__ = ["SLAAccelerator", "TrainingStoppedError"]
