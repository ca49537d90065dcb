"""What stands between a strategy and its checkpoints: nothing counts until it is proved."""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import AsyncCheckpointIO

from sla_lightning import _compat
from sla_lightning.checkpoint_io import SLACheckpointIO, write_file
from sla_lightning.paths import is_remote, local_path
from sla_lightning.save_facts import facts_of, is_fit
from sla_lightning.strategies import SLAStrategyMixin
from slav1.checkpoint import (
    CheckpointError,
    Manifest,
    SaveFacts,
    SaveFailedError,
    Shelf,
    WorldSizeError,
)
from slav1.checkpoint.errors import too_many_failed
from slav1.checkpoint.fingerprints import name_tensors
from slav1.checkpoint.snapshot import SnapshotBuffers, snapshot
from slav1.contract.settings import CheckpointSettings
from slav1.session import Session

_log = logging.getLogger("sla_lightning")

Write = Callable[..., None]
"""A strategy's own ``save_checkpoint``."""


class CheckpointGuard:
    """Saves, loads and removes for one strategy while a run is watched.

    Used by our strategies, and put around any other by :meth:`wrap`.
    """

    def __init__(
        self, trainer: Trainer, session: Session, shelf: Shelf, settings: CheckpointSettings
    ) -> None:
        """Starts with nothing saved.

        Args:
            trainer: The trainer whose strategy is guarded.
            session: This rank's session.
            shelf: The checkpoints of the run.
            settings: The contract's settings for them.
        """
        self._trainer = trainer
        self._session = session
        self._shelf = shelf
        self._settings = settings
        self._buffers = SnapshotBuffers()
        self.has_begun = False
        """Whether training has begun. What is saved before, as to look for a learning rate, is
        no checkpoint of the run."""
        self.trusted: Path | None = None
        """Checkpoint that is loaded without being verified again."""
        self.is_doubtful = False
        """Whether what is saved now is for people to look at, and never to go on from."""
        self._said: set[str] = set()

    def wrap(self) -> None:
        """Puts itself between the trainer's strategy and its checkpoints."""
        strategy: Any = self._trainer.strategy
        _refuse_async(strategy)
        if isinstance(strategy, SLAStrategyMixin):
            strategy.guard = self
            return
        save, load, remove = (
            strategy.save_checkpoint,
            strategy.load_checkpoint,
            strategy.remove_checkpoint,
        )

        def save_checkpoint(
            checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
        ) -> None:
            self.save(save, checkpoint, filepath, storage_options)

        def load_checkpoint(checkpoint_path: Any, weights_only: bool | None = None) -> Any:
            return self.load(load, checkpoint_path, weights_only)

        strategy.save_checkpoint = save_checkpoint
        strategy.load_checkpoint = load_checkpoint
        strategy.remove_checkpoint = partial(self.remove, remove)

    def unwrap(self) -> None:
        """Gives the strategy its own methods back."""
        strategy: Any = self._trainer.strategy
        if isinstance(strategy, SLAStrategyMixin):
            strategy.guard = None
        for name in ("save_checkpoint", "load_checkpoint", "remove_checkpoint"):
            vars(strategy).pop(name, None)

    def save(
        self, save: Write, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None
    ) -> None:
        """Collective. Saves, proves and commits, or leaves everything as it was.

        Raises:
            SaveFailedError: On all ranks, if ``max_failed_saves`` failed in a row.
            PeersMissingError: If some ranks do not save.
        """
        if not self.has_begun:
            save(checkpoint, filepath, storage_options=storage_options)
            return
        facts = facts_of(self._trainer, checkpoint)
        if self.is_doubtful:
            facts = replace(facts, is_healthy=False)
        path, why_not = self._agree(filepath, self._why_not(filepath, facts))
        if why_not:
            self._say(f"Not saved: {path}. {why_not}", once=False)
        elif is_remote(path):
            self._say(
                f"Checkpoints at {path.split('://')[0]}:// are written by the host alone, neither "
                "proved nor offered as last_good; checkpoint.every_steps keeps proved ones in the "
                "run folder."
            )
            save(checkpoint, path, storage_options=storage_options)
        else:
            self._bear_earlier()
            try:
                self._prove(save, checkpoint, local_path(path), storage_options, facts)
            except SaveFailedError as error:
                self.bear(error)

    def _prove(
        self,
        save: Write,
        checkpoint: dict[str, Any],
        path: Path,
        storage_options: Any | None,
        facts: SaveFacts,
    ) -> None:
        if not self._is_plain_file(storage_options):
            # Where ranks talk while they write, training can't go on beside it.
            self._shelf.save(
                path,
                lambda staging: save(checkpoint, staging, storage_options=storage_options),
                facts,
            )
            return
        # The host's own writer goes through memory twice, through the folder for temporary
        # files, and says nothing where it may not write.
        is_writer = self._trainer.is_global_zero
        if self._settings.background or self.is_doubtful:
            written = checkpoint if is_writer else {}
            checkpoint, replicas = snapshot((written, facts.replicas), self._buffers)
            facts = replace(facts, tensors=name_tensors(checkpoint), replicas=replicas)
            save_it: Callable[..., object] = self._shelf.save_in_background
        else:
            save_it = self._shelf.save
        save_it(path, lambda staging: write_file(checkpoint, staging) if is_writer else None, facts)

    def _is_plain_file(self, storage_options: Any | None) -> bool:
        """Whether rank 0 alone writes one file, as Lightning would by itself."""
        is_usual = type(self._trainer.strategy.checkpoint_io) in (
            TorchCheckpointIO,
            SLACheckpointIO,
        )
        return is_usual and storage_options is None and not _compat.is_sharded(self._trainer)

    def bear(self, error: SaveFailedError) -> None:
        """Takes a failed save, which the ledger holds already, unless there were too many.

        Raises:
            SaveFailedError: The same one, if ``max_failed_saves`` failed in a row.
        """
        if self._shelf.num_failed_in_row >= self._settings.max_failed_saves:
            self._say(too_many_failed(self._shelf.num_failed_in_row), once=False)
            raise error
        if error.is_skewed or not error.has_quorum:
            self._session.ask_to_roll_back(error.reason, step=error.step)
        if self._session.rank == 0:
            _log.warning("%s", error)

    def drain(self, limit_s: float) -> None:
        """Waits for a save in the background, at the end of a run; what fails is in the ledger."""
        try:
            self._shelf.drain(limit_s)
        except CheckpointError as error:
            self._say(str(error))

    def _bear_earlier(self) -> None:
        """Collective. Takes what became of the save before this one, on all ranks alike."""
        try:
            self._shelf.drain(self._settings.limit_s)
        except SaveFailedError as error:
            self.bear(error)

    def load(
        self, load: Callable[..., dict[str, Any]], path: Any, weights_only: bool | None
    ) -> dict[str, Any]:
        """Collective. Verifies all of a checkpoint before the host loads any of it.

        Raises:
            CheckpointDamagedError: On all ranks, if it is not what was committed.
            WorldSizeError: On all ranks, if it needs another number of them.
        """
        if not is_remote(path):
            self.verify(local_path(path))
        elif self._session.rank == 0:
            self._say(f"Not verified before loading, because it is remote: {path}.")
        return load(path, weights_only=weights_only)

    def verify(self, path: Path) -> None:
        """Collective. See :meth:`load`."""
        if path == self.trusted or not path.exists():
            return
        manifest = self._shelf.check(path)
        if manifest is None:
            self._say(f"{path} has no manifest: it was not verified, and is loaded as it is.")
        else:
            self.check_world_size(path, manifest)

    def check_world_size(self, path: Path, manifest: Manifest) -> None:
        """Looks whether as many ranks are there as a checkpoint needs that is whole.

        Raises:
            WorldSizeError: If its parts are tied to ranks and there are more or fewer.
        """
        present = self._trainer.world_size
        if manifest.world_size != present and _compat.is_tied_to_ranks(self._trainer):
            raise WorldSizeError(path=path, saved=manifest.world_size, present=present)

    def remove(self, remove: Callable[[Any], None], path: Any) -> None:
        """Removes a checkpoint, unless the run may still need it to go on."""
        if is_remote(path) or local_path(path).is_symlink():
            remove(path)
            return
        if self._shelf.may_remove(local_path(path)):
            remove(path)
            self._shelf.removed(local_path(path))

    def _agree(self, filepath: Any, why_not: str) -> tuple[str, str]:
        """Collective. Rank 0's path and, if nothing may be saved now, why."""
        mine = {"path": os.fspath(filepath), "why_not": why_not}
        limit_s = self._settings.limit_s
        of_all = self._session.peers.gather("checkpoint", mine, limit_s=limit_s)
        reasons = [each["why_not"] for each in of_all if each["why_not"]]
        return of_all[0]["path"], reasons[0] if reasons else ""

    def _why_not(self, filepath: Any, facts: SaveFacts) -> str:
        if self._session.command.is_deciding and not self.is_doubtful:
            return "The contract is about to act on a breach; the state may be in it."
        if is_remote(filepath) or not self._shelf.is_last_good(local_path(filepath)):
            return ""
        if not is_fit(facts):
            return "It is no state to go on from, and would take the last good one's place."
        return ""

    def _say(self, message: str, *, once: bool = True) -> None:
        if self._session.rank != 0 or (once and message in self._said):
            return
        self._said.add(message)
        self._session.note(message, step=self._trainer.global_step - 1)


def _refuse_async(strategy: Any) -> None:
    if isinstance(strategy.checkpoint_io, AsyncCheckpointIO):
        raise TypeError(
            "plugins holds an AsyncCheckpointIO. It reports a save as done before it is written, "
            "so nothing could be proved. Take it out and write checkpoint: {background: true} in "
            "the contract: that saves from a copy in memory while training goes on, and proves it."
        )
