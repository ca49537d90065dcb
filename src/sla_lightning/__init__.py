"""The stability contract in Lightning: one callback."""

from sla_lightning.actions import JobEndedError
from sla_lightning.callback import SLACallback

__all__ = ["JobEndedError", "SLACallback"]
