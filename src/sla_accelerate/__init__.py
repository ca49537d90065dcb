"""The stability contract in Accelerate: one changed line, one added, or none."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sla_accelerate._attach import attach
    from sla_accelerate._batches.order import DataOrderError
    from sla_accelerate._saved.restore import LoadFailedError
    from sla_accelerate.accelerator import SLAAccelerator
    from sla_accelerate.actions import TrainingStoppedError
    from sla_accelerate.trainer import SLATrainer
    from sla_accelerate.trainer_callback import SLATrainerCallback

__all__ = [
    "DataOrderError",
    "LoadFailedError",
    "SLAAccelerator",
    "SLATrainer",
    "SLATrainerCallback",
    "TrainingStoppedError",
    "attach",
]

_HOMES = {
    "DataOrderError": "_batches.order",
    "LoadFailedError": "_saved.restore",
    "SLAAccelerator": "accelerator",
    "SLATrainer": "trainer",
    "SLATrainerCallback": "trainer_callback",
    "TrainingStoppedError": "actions",
    "attach": "_attach",
}


def __getattr__(name: str) -> Any:
    # `python -m sla_accelerate.run` imports this file before the script's first line, which
    # may set what torch and the host read when they are imported.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
