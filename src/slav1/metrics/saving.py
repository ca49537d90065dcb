"""The metrics of all ranks in a checkpoint that one rank saves."""

from collections.abc import MutableMapping
from typing import Any

from torch import nn

from slav1.metrics._metric import ServiceMetric


def gather_into(state_dict: MutableMapping[str, Any], module: nn.Module, prefix: str = "") -> None:
    """Collective. Puts what all ranks have counted into a ``state_dict``.

    Without it a checkpoint holds what the rank that saves it has counted itself. All ranks of
    the process group call it, at each save, with the same metrics in their modules; without a
    process group nothing changes.

    Args:
        state_dict: What ``module.state_dict()`` gave; changed in place.
        module: The module that the metrics of this package lie in, or one of them.
        prefix: What the names in ``state_dict`` begin with, as ``"model."``.

    Example:
        In a ``LightningModule``::

            def on_save_checkpoint(self, checkpoint):
                gather_into(checkpoint["state_dict"], self)
    """
    for name, child in module.named_modules():
        if not isinstance(child, ServiceMetric):
            continue
        with child.sync_context():
            state_dict.update(child.state_dict(prefix=f"{prefix}{name}." if name else prefix))
