"""What the callbacks of a trainer keep, and when they save."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer


def checkpoint_folders(trainer: Trainer) -> list[Path]:
    """Folders in which the trainer's callbacks keep checkpoints, as far as known already."""
    host: Any = trainer
    folders = [getattr(callback, "dirpath", None) for callback in host.checkpoint_callbacks]
    return [Path(folder) for folder in folders if folder and "://" not in str(folder)]


def saves_on_exception(trainer: Trainer) -> bool:
    """Whether a callback saves a last checkpoint when training ends by an exception."""
    host: Any = trainer
    return any(
        getattr(callback, "save_on_exception", False)
        or type(callback).__name__ == "OnExceptionCheckpoint"
        for callback in host.callbacks
    )
