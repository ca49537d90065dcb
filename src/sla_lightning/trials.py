"""Trials that a tuner of the host's makes inside of a fit: without the trainer's callbacks."""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, Trainer

from slav1.phase import Phase
from slav1.recorder import Recorder


class _Alive(Callback):
    """Tells of each batch that there is progress; a trial has no steps that count."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_train_batch_start(self, *_: Any) -> None:
        """Each batch is progress."""
        self._recorder.enter(int(Phase.EVALUATION))

    def on_validation_batch_start(self, *_: Any) -> None:
        """Each batch is progress."""
        self._recorder.enter(int(Phase.EVALUATION))


def run_trial(trainer: Trainer, recorder: Recorder, run: Callable[[], None]) -> None:
    """Runs the fit loop as the host does, with the limits of an evaluation.

    Args:
        trainer: The trainer.
        recorder: What tells the monitor of progress.
        run: The loop.
    """
    host: Any = trainer
    alive = _Alive(recorder)
    # At the end: the host looks for its own at the beginning.
    host.callbacks = [*host.callbacks, alive]
    recorder.enter(int(Phase.EVALUATION))
    try:
        run()
    finally:
        host.callbacks = [one for one in host.callbacks if one is not alive]
        recorder.enter(int(Phase.SETUP))
