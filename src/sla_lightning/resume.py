"""Going on from the newest checkpoint that verifies: asked for by ``ckpt_path="last_good"``,
and without a word when a launcher has started the run again."""

import os
from typing import Any

from lightning.pytorch import Trainer

from sla_lightning import _compat
from sla_lightning.checkpoint_guard import CheckpointGuard
from slav1.checkpoint import Choice, Shelf
from slav1.session import Session

LAST_GOOD = "last_good"
"""What ``ckpt_path`` says instead of a path."""


class Resume:
    """Stands before the host's loading, and puts a path in the place of ``last_good``."""

    def __init__(
        self, trainer: Trainer, session: Session, shelf: Shelf, guard: CheckpointGuard
    ) -> None:
        """Stores what it works with, and steps in front of the host.

        Args:
            trainer: The trainer, before it has loaded anything.
            session: This rank's session.
            shelf: The checkpoints of the run.
            guard: What the trainer's strategy loads through.
        """
        self._session = session
        self._shelf = shelf
        self._guard = guard
        self.choice: Choice | None = None
        """What ``last_good`` became; None if it was not asked for, or there is none."""
        self.goes_on: bool | None = None
        """Whether the fit goes on from a checkpoint; None before that is known. A tuner that
        loads one later, to begin its trials alike, changes nothing about it."""
        _compat.around_resume(trainer, self._path_to_load)

    def _path_to_load(self, asked: Any) -> Any:
        """Collective. What to load instead of ``asked``; the same on all ranks."""
        path = self._choose(asked)
        if self.goes_on is None:
            self.goes_on = path is not None
        return path

    def _choose(self, asked: Any) -> Any:
        is_asked_for = asked is not None and os.fspath(asked) == LAST_GOOD
        if not is_asked_for and not self._is_started_again():
            return asked
        # What the same script left at another time is only gone on from if it is asked for.
        self.choice = self._shelf.choose(of_this_run=not is_asked_for)
        if self.choice is None:
            self._say("This run has no checkpoint to go on from.")
            return None if is_asked_for else asked
        self._guard.check_world_size(self.choice.path, self.choice.manifest)
        self._shelf.resumed(self.choice)
        # It has just been read whole, by all ranks together.
        self._guard.trusted = self.choice.path
        return self.choice.path

    def interrupted(self) -> None:
        """People have broken the training off: that says nothing of the checkpoint."""
        if self.choice is not None:
            self._shelf.interrupted(self.choice)

    def _is_started_again(self) -> bool:
        """Whether a launcher has brought the run back: its script asks for what it asked for
        at the first start, and would begin all over."""
        return self._session.attempt > 0 and "TORCHELASTIC_RUN_ID" in os.environ

    def _say(self, message: str) -> None:
        if self._session.rank == 0:
            self._session.note(message)
