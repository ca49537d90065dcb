"""One ``fit`` under the contract: everything that lives from its setup to its end."""

import logging
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import distributed as dist

from sla_lightning import _compat
from sla_lightning.actions import RestartError, drive, refuse_to_save
from sla_lightning.checkpoint_guard import CheckpointGuard
from sla_lightning.mild_actions import MildActions
from sla_lightning.position import Position
from sla_lightning.resume import Resume
from sla_lightning.rollback import Rollback
from sla_lightning.savers import checkpoint_folders, saves_on_exception
from sla_lightning.seeds import FitSeeds
from sla_lightning.telemetry import FitWatch
from sla_lightning.trials import run_trial
from slav1.checkpoint import Disk, PeersMissingError, Shelf
from slav1.checkpoint.shelf import OWN_FOLDER
from slav1.replicas import replay_for
from slav1.session import RunSettings, Session, join
from slav1.session.rendezvous import job_rendezvous, store_of_group
from slav1.session.settings_agreement import agree
from slav1.session.settings_source import resolve
from slav1.startup.restarts import restart_hazard
from slav1.testing import Faults, planned_faults

STATE_VERSION = 2
"""Version of what the callback keeps in a checkpoint."""

READABLE_VERSIONS = (1, STATE_VERSION)
"""Versions that this one can go on from; the first had no random states."""

LAST_SAVE_LIMIT_S = 10.0
"""How long a rank that failed waits for others that want to save too, or for its own last
save in the background, in seconds."""

_log = logging.getLogger("sla_lightning")


class WatchedFit:
    """What the callback's hooks work with while ``fit`` runs."""

    def __init__(
        self, trainer: Trainer, module: LightningModule, contract: Any, run_dir: str | None
    ) -> None:
        """Collective. Joins the run, on all ranks.

        Args:
            trainer: The trainer.
            module: What it trains.
            contract: The callback's argument.
            run_dir: The callback's argument.

        Raises:
            ValueError: On all ranks, if one of them can't use its settings, or they differ.
        """
        self._trainer = trainer
        # The callback that this belongs to has put itself there.
        self._callback = trainer.callbacks[0]  # type: ignore[attr-defined]
        self._lacks = _compat.missing_for_rollback(trainer)
        place = (trainer.global_rank, trainer.world_size)
        # A mistake in the plan is told before a run is opened.
        planned_faults(*place)
        self.session = self._join(contract, run_dir)
        # A fault hits the start that it is meant for, not the one that recovers from it.
        faults = planned_faults(*place, attempt=self.session.attempt)
        self._settings = self.session.contract.checkpoint
        self._loaded: dict[str, Any] = {}
        self._detectors: Any = None
        shelf = Shelf(
            settings=self._settings,
            peers=self.session.peers,
            run_folder=self.session.run_folder,
            attempt=self.session.attempt,
            roots=checkpoint_folders(trainer),
            disk=None if faults is None else self._failing_disk(faults),
        )
        self.seeds: FitSeeds | None = None
        self._was_taken_up = False
        self.guard = CheckpointGuard(trainer, self.session, shelf, self._settings)
        self._rollback = Rollback(trainer, self.session, shelf, self.guard, self._take_up)
        self.watch = FitWatch(trainer, module, self.session, faults, self._rollback.batches)
        self.mild = MildActions(trainer, self.watch, self.guard, self._rollback)
        """Carries out what neither stops training nor takes it back."""
        try:
            self.guard.wrap()
            self.seeds = FitSeeds(trainer, module, self.session, faults)
            self.watch.replay = replay_for(
                self.session,
                partial(_compat.replayable_modules, trainer),
                tell_first=self.seeds.tell_probe,
            )
            self._drive(shelf)
        except BaseException:
            self.leave("not_started")
            raise
        self._leave_reason = ""

    def _join(self, contract: Any, run_dir: str | None) -> Session:
        rank, world_size = self._trainer.global_rank, self._trainer.world_size
        group = store_of_group()
        settings = agree(
            None if group is None else group(),
            lambda: resolve(contract, run_dir, os.environ),
            rank=rank,
            world_size=world_size,
        )
        return join(
            RunSettings(
                contract=settings.contract,
                run_dir=settings.run_dir,
                rank=rank,
                local_rank=self._trainer.local_rank,
                world_size=world_size,
                node=self._trainer.node_rank,
                num_nodes=self._trainer.num_nodes,
                can_roll_back=not self._lacks,
                origin=settings.origin,
            ),
            job_rendezvous(),
        )

    def _failing_disk(self, faults: Faults) -> Disk:
        """A disk that does to checkpoints what is planned for this rank."""

        def damage(path: Path) -> None:
            step = self._trainer.global_step - 1
            faults.checkpoint(path, step)

        return Disk(after_flush=damage)

    def _drive(self, shelf: Shelf) -> None:
        """Takes the host's wheel, as far as this version of it can be driven."""
        self._position: Position | None = None
        self._resume: Resume | None = None
        if self._lacks:
            self.session.note(
                f"This Lightning lacks {', '.join(self._lacks)}: no rollback, no last_good, "
                "a resumed epoch begins at its first batch, and seeds are not set by rank."
            )
        else:
            assert self.seeds is not None
            _compat.before_iterating(self._trainer, self.seeds.watch_loaders)
            self._position = Position(
                self._trainer, self.session.peers, self._settings.limit_s, self._note
            )
            self._resume = Resume(self._trainer, self.session, shelf, self.guard)
        if not _compat.missing_names(self._trainer):
            _compat.wrap_run(self._trainer, self._run)

    def _run(self, run: Callable[[], None]) -> None:
        if not any(one is self._callback for one in self._trainer.callbacks):  # type: ignore[attr-defined]
            run_trial(self._trainer, self.watch.recorder, run)
            return
        goes_on = self._resume is not None and self._resume.goes_on
        if goes_on and _compat.is_resuming(self._trainer):
            self._take_up()
        if self.seeds is not None and not self._has_states():
            self.seeds.spread()
        drive(self._trainer, self.session, run, self._rollback)

    def begin(self, num_batches: int | None) -> None:
        """Training begins, or goes on after a rollback.

        Args:
            num_batches: Batches of an epoch; None if nobody knows.
        """
        self.guard.trusted = None
        self._compare_seeds()
        assert self.seeds is not None
        self.seeds.bind_evaluation()
        if not self.guard.has_begun:
            self.guard.has_begun = True
            self.session.compare(num_batches=num_batches)
            if self._trainer.is_global_zero:
                self._go_on()
                self._tell_hazard()
        self.watch.start_training()
        every = self._settings.every_steps
        if every is not None:
            num_done = self.watch.step + 1
            self.watch.next_save_step = num_done + every - num_done % every - 1

    def _compare_seeds(self) -> None:
        assert self.seeds is not None
        first = "resume" if self._was_taken_up else "start"
        self.seeds.compare(
            "rollback" if self.guard.has_begun else first,  # type: ignore[arg-type]
            None if self._position is None else self._position.pending,
        )

    def _has_states(self) -> bool:
        return self._position is not None and self._position.pending is not None

    def tell_workers(self) -> None:
        """Tells what random numbers the loaders' workers have begun with."""
        assert self.seeds is not None
        self.seeds.tell_workers()

    def save_own(self) -> None:
        """Collective. Saves a checkpoint of our own in the run folder."""
        step = self.watch.step
        self.watch.next_save_step = step + (self._settings.every_steps or math.inf)
        self._trainer.save_checkpoint(self.session.run_folder / OWN_FOLDER / f"step-{step}")

    def state(self) -> dict[str, Any]:
        """Collective. What belongs into a checkpoint, as plain values; all of it on rank 0."""
        try:
            ranks = {} if self._position is None else self._position.state()
        except PeersMissingError:
            if not self._leave_reason:
                raise
            # A save after an exception must not hide the exception.
            ranks = {}
        if self.seeds is not None:
            ranks |= self.seeds.state()
            self.seeds.tell_workers()
        # On every rank: rank 0 waits for the last samples of all.
        self.watch.losses.drain()
        kept = {"version": STATE_VERSION, "gradients": self.watch.gradients.state(), **ranks}
        if self.session.rank != 0:
            return kept
        last_step = self.watch.step if self.watch.recorder.num_records else None
        detectors = self.session.ask_state(last_step)
        return {**kept, "detectors": detectors}

    def load(self, state: dict[str, Any]) -> None:
        """Keeps what :meth:`state` gave, until training is where it was."""
        version = state.get("version")
        if version in READABLE_VERSIONS:
            self._loaded = state
            self.watch.gradients.load(state.get("gradients"))
            if self.seeds is not None:
                self.seeds.adopt(state)
        elif version is not None:
            _log.warning(
                "The checkpoint holds SLA state of version %s, this is version %s; the detectors "
                "start afresh.",
                *(version, STATE_VERSION),
            )

    def fail(self, error: BaseException, leave: Callable[[str], None]) -> None:
        """Publishes an exception, and leaves unless there is a last checkpoint to save.

        Args:
            error: What was raised.
            leave: Leaves the run, for the reason it is given.
        """
        if isinstance(error, RestartError):
            # All ranks stop as after any decision, but nobody may save on the way out.
            _compat.before_teardown(self._trainer, lambda: leave("finished"))
            return
        reason = self._leave_reason = type(error).__name__
        self.session.fail(error, self._trainer.global_step)
        if isinstance(error, KeyboardInterrupt) and self._resume is not None:
            self._resume.interrupted()
        if not saves_on_exception(self._trainer):
            leave(reason)
        elif self._do_all_fail():
            _compat.before_teardown(self._trainer, lambda: leave(reason))
        else:
            leave(reason)
            refuse_to_save(self._trainer, "Other ranks go on: they would not come to this save.")

    def leave(self, reason: str) -> None:
        """Gives everything back and leaves the run; a second call does nothing."""
        limit_s = LAST_SAVE_LIMIT_S if reason != "finished" else self._settings.limit_s
        self.guard.drain(limit_s)
        self.guard.unwrap()
        self.watch.close()
        if self.seeds is not None:
            self.seeds.close()
        self.session.leave(reason)

    def _do_all_fail(self) -> bool:
        """Collective if all ranks fail. Whether they do."""
        try:
            self.session.peers.gather("exception", None, limit_s=LAST_SAVE_LIMIT_S)
        except PeersMissingError:
            return False
        return True

    def _take_up(self) -> Any:
        """Puts data and random numbers where the loaded checkpoint says; see Rollback."""
        loaded, self._loaded, self._was_taken_up = self._loaded, {}, True
        assert self._position is not None
        self._position.take_up(loaded if "ranks" in loaded else None)
        self._detectors = loaded.get("detectors")
        return self._detectors if self._trainer.is_global_zero else None

    def _go_on(self) -> None:
        detectors = self._detectors or self._loaded.get("detectors")
        if detectors is not None:
            self.session.restore(detectors)
        elif self._trainer.ckpt_path is not None:
            self.session.note(
                f"Training goes on from {self._trainer.ckpt_path}, which holds no SLA state of "
                "this version: the detectors start with empty windows, and what is drawn at random "
                "is drawn anew."
            )

    def _tell_hazard(self) -> None:
        if dist.is_initialized() and (said := restart_hazard(os.environ, dist.get_backend())):
            self.session.note(said)

    def _note(self, message: str) -> None:
        if self.session.rank == 0:
            self.session.note(message)
