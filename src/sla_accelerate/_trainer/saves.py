"""The checkpoints of a trainer: proved before they count, and removed only when they may be."""

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sla_accelerate._disk import disk_of
from sla_accelerate._saved.saver import Saver
from sla_accelerate._trainer import compat
from sla_accelerate.telemetry import LoopWatch
from slav1.checkpoint import SaveFacts, Shelf
from slav1.checkpoint.errors import SaveFailedError, too_many_failed
from slav1.checkpoint.shelf import OWN_FOLDER

HOST = "transformers"
"""Name of the host in manifests."""

_log = logging.getLogger("sla_accelerate")


def shelf_of(host: Any, watch: LoopWatch, trial: Any) -> Shelf:
    """The checkpoints of one ``train``: those in its output folder, whichever script runs it."""
    folder = compat.output_dir(host, trial)
    return Shelf(
        settings=watch.session.contract.checkpoint,
        peers=watch.session.peers,
        run_folder=watch.session.run_folder,
        attempt=watch.session.attempt,
        roots=[folder],
        run=os.environ.get("SLA_RUN_ID") or str(folder),
        disk=disk_of(watch),
    )


class Saves:
    """Saves for one trainer while it is watched. Every rank makes the same calls."""

    def __init__(self, host: Any, watch: LoopWatch, shelf: Shelf, make_saver: Any) -> None:
        """Starts with nothing saved.

        Args:
            host: The trainer.
            watch: The run.
            shelf: The checkpoints of the run.
            make_saver: Makes what writes them, of what writes the host's own files.
        """
        self._host = host
        self._watch = watch
        self._shelf = shelf
        self._settings = watch.session.contract.checkpoint
        self._write: Callable[[], Any] = lambda: None
        self._path = Path()
        self._staying: set[Path] = set()
        self.saver: Saver = make_saver(self._write_host)
        """Writes the state into a folder."""

    def save(self, write: Callable[[], Any], *, trial: Any = None) -> None:
        """Collective. Saves where the host saves, and does its rotation.

        Args:
            write: The host's own way to save.
            trial: Of a search for parameters.

        Raises:
            SaveFailedError: On all ranks, if too many saves failed in a row.
        """
        folder = compat.output_dir(self._host, trial)
        path = folder / compat.folder_name(self._host.state.global_step)
        if self._prove(path, write):
            self.rotate(folder, keeps=path)

    def is_due(self, step: int) -> bool:
        """Whether the contract wants a checkpoint of its own after a step."""
        every = self._settings.every_steps
        return every is not None and (step + 1) % every == 0

    def check(self, path: Path) -> None:
        """Collective. Verifies a checkpoint that the host is about to load from.

        Raises:
            CheckpointDamagedError: On all ranks, if it is not what was committed.
        """
        peers = self._watch.session.peers
        # Where each machine has a disk of its own, others have nothing to look at.
        seen = peers.gather("best checkpoint", path.is_dir(), limit_s=self._settings.limit_s)
        if all(seen):
            self._shelf.check(path)

    def save_own(self, write: Callable[[], Any]) -> None:
        """Collective. Saves in the run folder, as often as the contract wants it."""
        folder = self._watch.session.run_folder / OWN_FOLDER
        path = folder / compat.folder_name(self._host.state.global_step)
        self._prove(path, write)

    def rotate(self, folder: Path, *, keeps: Path) -> None:
        """Removes what the host would remove, but never the last good ones. The first rank acts.

        Args:
            folder: Where the host's checkpoints are.
            keeps: The newest one.
        """
        limit, state = self._host.args.save_total_limit, self._host.state
        if not limit or limit < 0 or self._watch.session.rank:
            return
        kept = {keeps.name, Path(state.best_model_checkpoint or "").name}
        found = [path for _, path in compat.numbered(folder)]
        num_wanted = max(limit, len([path for path in found if path.name in kept]))
        for path in [path for path in reversed(found) if path.name not in kept]:
            if len(found) <= num_wanted:
                return
            # Of an earlier place of the folder, or of the host alone: it may be all there is.
            if self._shelf.may_remove(path, is_guarded=True):
                self._remove(path)
                found.remove(path)

    def _remove(self, path: Path) -> None:
        try:
            shutil.rmtree(path)
        except OSError as error:
            # Too much left behind harms nobody, and once is enough to say so.
            if path not in self._staying:
                self._staying.add(path)
                self._watch.session.note(f"{path} could not be removed: {error}.")
        self._shelf.removed(path)

    def _prove(self, path: Path, write: Callable[[], Any]) -> bool:
        """Collective. Whether it became a checkpoint."""
        self._write, self._path = write, path
        state = self._host.state
        best = state.best_model_checkpoint
        try:
            self._shelf.save(path, self.saver.writer(self._watch, (), {}), self._facts())
        except SaveFailedError as error:
            state.best_model_checkpoint = best
            self._bear(error)
            return False
        compat.push(self._host, path)
        return True

    def _write_host(self, folder: str) -> None:
        """Writes the host's files, on this rank."""
        host, path = self._host, Path(folder)
        with compat.writing_to(host, path) as link:
            self._write()
        if host.state.best_model_checkpoint == str(link):
            # Where it will lie.
            host.state.best_model_checkpoint = str(self._path)
            if host.args.should_save:
                host.state.save_to_json(str(path / compat.STATE))

    def _facts(self) -> SaveFacts:
        host = self._host
        facts = self.saver.facts(self._watch)
        if facts.tensors and self._settings.verify == "content":
            facts = replace(facts, tensors=compat.saved_tensors(host))
        return replace(
            facts,
            position={"epoch": host.state.epoch, "global_step": host.state.global_step},
            # Weights alone are a checkpoint, but none to go on from.
            lacks="the optimizer and more (save_only_model)" if host.args.save_only_model else "",
        )

    def _bear(self, error: SaveFailedError) -> None:
        session = self._watch.session
        if error.is_skewed or not error.has_quorum:
            session.ask_to_roll_back(error.reason, step=self._watch.step)
        if self._shelf.num_failed_in_row >= self._settings.max_failed_saves:
            if session.rank == 0:
                session.note(too_many_failed(self._shelf.num_failed_in_row))
            raise error
        if session.rank == 0:
            _log.warning("%s Training goes on.", error)
