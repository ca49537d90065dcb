"""The drop-in for ``transformers.Trainer``: one changed line."""

from inspect import signature
from typing import Any

# First, since it says what to install where transformers is missing.
from sla_accelerate.trainer_callback import SLATrainerCallback

from transformers import Trainer  # isort: skip


class SLATrainer(Trainer):
    """A ``transformers.Trainer`` that has an :class:`~sla_accelerate.SLATrainerCallback`.

    For scripts whose import is the only line to change. Settings come from the environment or
    Accelerate's file; give the callback yourself for settings in code, it is then left as it is.

    Example:
        >>> from sla_accelerate import SLATrainer as Trainer
        >>> Trainer.__mro__[1].__name__
        'Trainer'
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what the host's takes."""
        given = signature(Trainer).bind(*args, **kwargs)
        callbacks = list(given.arguments.get("callbacks") or ())
        if not any(map(_is_watching, callbacks)):
            callbacks.append(SLATrainerCallback())
        given.arguments["callbacks"] = callbacks
        super().__init__(*given.args, **given.kwargs)


def _is_watching(callback: Any) -> bool:
    """Whether it is one of ours; the host takes classes too."""
    kind = callback if isinstance(callback, type) else type(callback)
    return issubclass(kind, SLATrainerCallback)
