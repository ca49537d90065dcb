"""The contract's own numbers in the user's loggers."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Trainer

from sla_lightning import _compat
from slav1.recorder import Recorder


class StepMetrics:
    """Gives the host's loggers what a step took, as often as the host itself logs.

    On all other steps it counts down one number. Only global rank 0 logs, its own times.
    """

    def __init__(
        self,
        trainer: Trainer,
        recorder: Recorder,
        figures: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        """Starts at the step the trainer is at.

        Args:
            trainer: Its ``loggers`` and ``log_every_n_steps`` are used.
            recorder: Where the times come from.
            figures: Gives the service-level figures up to now; None to log none.
        """
        self._trainer = trainer
        self._recorder = recorder
        self._figures = figures
        host: Any = trainer
        is_logging = bool(trainer.loggers) and trainer.is_global_zero
        self._every: int = host.log_every_n_steps if is_logging else 0
        # Counts past 0 for ever where nothing is logged.
        self._num_left = self._every - (
            _compat.log_step(trainer) % self._every if self._every else 0
        )

    def end_step(self) -> None:
        """A step's record is written."""
        self._num_left -= 1
        if self._num_left == 0:
            self._num_left = self._every
            self._log()

    def _log(self) -> None:
        sample = self._recorder.last_sample()
        if sample is None:
            return
        figures = sample.times_s()
        if self._figures is not None:
            figures |= self._figures()
        known = {f"sla/{name}": value for name, value in figures.items()}
        for logger in self._trainer.loggers:
            logger.log_metrics(known, step=_compat.log_step(self._trainer))
