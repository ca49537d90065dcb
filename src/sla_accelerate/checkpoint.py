"""Saving and loading the state of an accelerator as checkpoints that are proved."""

import contextlib
import logging
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]

from sla_accelerate import _runs
from sla_accelerate._batches.position import Positions
from sla_accelerate._disk import disk_of
from sla_accelerate._saved.folders import NumberedFolders, folder_named
from sla_accelerate._saved.restore import Loaded, Restorer
from sla_accelerate._saved.saver import Saver
from sla_accelerate.actions import NoWayBackError, harm_of
from sla_accelerate.mild_actions import MildActions
from sla_accelerate.telemetry import LoopWatch
from slav1.checkpoint import Choice, Shelf
from slav1.checkpoint.errors import SaveFailedError, too_many_failed
from slav1.contract.settings import CheckpointSettings
from slav1.decision import Decision

LAST_GOOD = "last_good"
"""What to pass to ``load_state`` for the newest checkpoint that verifies."""

_log = logging.getLogger("sla_accelerate")


class Checkpoints:
    """The checkpoints of one accelerator. Every rank makes the same calls in the same order."""

    def __init__(
        self,
        accelerator: Any,
        *,
        saver: Saver,
        restorer: Restorer,
        settings: CheckpointSettings,
        positions: Positions,
        skips_bad_batches: bool,
    ) -> None:
        """Starts with nothing.

        Args:
            accelerator: The accelerator.
            saver: Writes all of its state into a folder.
            restorer: Loads one checkpoint into it.
            settings: Of the contract.
            positions: Where its loaders are.
            skips_bad_batches: Whether a rollback leaves out what the bad steps were made of.
        """
        self._skips_bad_batches = skips_bad_batches
        self._accelerator = accelerator
        self._project = accelerator.project_configuration
        self._saver = saver
        self._restorer = restorer
        self._settings = settings
        self._positions = positions
        self._shelf: Shelf | None = None
        self.mild = MildActions(saver, positions, self.shelf)
        """Carries out what neither stops training nor takes it back."""
        self._of: LoopWatch | None = None

    def shelf(self, watch: LoopWatch) -> Shelf:
        """The run's line of checkpoints."""
        if self._shelf is None or self._of is not watch:
            folders = self._folders()
            self._settings = watch.session.contract.checkpoint
            self._shelf = Shelf(
                settings=self._settings,
                peers=watch.session.peers,
                run_folder=watch.session.run_folder,
                attempt=watch.session.attempt,
                roots=[] if folders is None else [folders.root],
                disk=disk_of(watch),
            )
            self._of = watch
            if self._settings.background or self._settings.every_steps is not None:
                self._say(
                    watch,
                    "checkpoint.background and checkpoint.every_steps have no effect in "
                    "Accelerate: save_state() saves when the loop calls it, and waits.",
                )
        return self._shelf

    def save(self, watch: LoopWatch, output_dir: Any, *args: Any, **options: Any) -> Path | None:
        """Collective. Saves, proves and commits the state.

        Args:
            watch: The run.
            output_dir: Where to; not looked at with automatic naming.
            args: For the host's ``save_state``.
            options: The same.

        Returns:
            Where it lies; None if it could not be saved and training may go on.

        Raises:
            SaveFailedError: On all ranks, if too many saves failed in a row.
            FileExistsError: If a file has the name of the folder.
            ValueError: If it is the working directory, or holds that.
        """
        shelf = self.shelf(watch)
        number = self._project.iteration
        folders = self._folders() if self._project.automatic_checkpoint_naming else None
        if folders is not None:
            with contextlib.suppress(OSError):
                # Where it can't be made the checkpoint can't either, and the save says why.
                folders.workshop.mkdir(parents=True, exist_ok=True)
            number = self._agree(watch, "number of a checkpoint", folders.next_number(number))
        path = folder_named(output_dir) if folders is None else folders.path_of(number)
        try:
            commit = shelf.save(
                path, self._saver.writer(watch, args, options), self._saver.facts(watch)
            )
        except SaveFailedError as error:
            self._project.iteration = number
            if error.is_skewed or not error.has_quorum:
                watch.session.ask_to_roll_back(error.reason, step=watch.step)
            if shelf.num_failed_in_row >= self._settings.max_failed_saves:
                self._say(watch, too_many_failed(shelf.num_failed_in_row))
                raise
            _log.warning("%s Training goes on.", error)
            return None
        self._project.iteration = number + 1
        if folders is not None and self._project.total_limit is not None:
            # For the host, too, 0 means to keep just the new one.
            shelf.prune(folders.root, keep=max(1, self._project.total_limit))
        return commit.path

    def save_unproved(self, output_dir: Any, *args: Any, **options: Any) -> Path:
        """Collective. Saves where no run is open any more: whole if all goes well, and never
        taken for a good checkpoint."""
        folders = self._folders() if self._project.automatic_checkpoint_naming else None
        path = folder_named(output_dir) if folders is None else None
        if folders is not None:
            numbers = [folders.next_number(self._project.iteration)]
            path = folders.path_of(broadcast_object_list(numbers)[0])
        assert path is not None
        _log.warning("The run is over, so %s is saved without being proved.", path)
        self._saver.write(path, args, options)
        return path

    def load(self, watch: LoopWatch, input_dir: Any, **options: Any) -> Path | None:
        """Collective. Verifies a checkpoint on all ranks and then loads it.

        Args:
            watch: The run.
            input_dir: A folder, ``last_good``, or None for the newest good one.
            options: For the host's ``load_state``.

        Returns:
            What was loaded; None if the run has nothing yet to go on from.

        Raises:
            CheckpointError: On all ranks, if it is damaged, or can't be loaded.
            NoGoodCheckpointError: If there are some and none can be used.
            ValueError: If there is no such folder.
            FileNotFoundError: If none was named and there is none.
        """
        if input_dir is None or str(input_dir) == LAST_GOOD:
            newest = self.shelf(watch).last_good
            choice = self.shelf(watch).choose()
            if choice is not None:
                self._tell_lost(watch, choice, newest)
                if watch.num_steps == 0:
                    # Counted first: one that ends the process must not be tried for ever.
                    self.shelf(watch).resumed(choice)
                    _runs.when_interrupted(partial(self.shelf(watch).interrupted, choice))
                loaded = self._restore(watch, choice, **options)
                self._go_on(watch, loaded, is_rollback=False)
                return choice.path
            if input_dir is not None:
                self._say(watch, "This run has no checkpoint yet: it starts from the beginning.")
                return None
        path = self._named(watch, input_dir)
        manifest = self.shelf(watch).check(path)
        if manifest is None:
            self._say(
                watch, f"{path} was not saved under the contract: it is loaded, not verified."
            )
        saved = self._restorer.load(watch.session.peers, path, manifest, self._settings, options)
        self._go_on(watch, saved, is_rollback=False)
        return path

    def _tell_lost(self, watch: LoopWatch, choice: Choice, newest: Choice | None) -> None:
        num_lost = 0 if newest is None else newest.step - choice.step
        if num_lost > 0:
            self._say(
                watch,
                f"Going on from {choice.path} (step {choice.step}): the {num_lost} steps up to "
                "the newest checkpoint are lost.",
            )

    def roll_back(self, watch: LoopWatch, decision: Decision) -> None:
        """Collective. Takes the state back to the last good checkpoint from before the harm.

        The batches of the bad steps are left out from now on, unless they are to be tried
        again.

        Raises:
            NoWayBackError: If the run has no checkpoint yet, or if not all of the state
                would go back.
            CheckpointError: On all ranks, if none can be used.
        """
        if watch.updates_are_told and self._restorer.num_registered() == 0:
            raise NoWayBackError(
                "what makes its updates is neither prepared nor registered "
                "(register_for_checkpointing), so it can't be set back."
            )
        harm = harm_of(decision, watch.step)
        bad = None
        if harm.are_batches_bad:
            bad = self._positions.batches_of(harm.onset_step, harm.alarm_step)
        choice = self.shelf(watch).choose(before_step=harm.onset_step)
        if choice is None:
            raise NoWayBackError("it has no checkpoint yet; save_state() makes them.")
        loaded = self._restore(watch, choice)
        # Before this rank says that it is back: a later start must not find what is newer.
        self.shelf(watch).rolled_back(choice)
        self._go_on(watch, loaded, is_rollback=True)
        if self._skips_bad_batches and bad is not None:
            self._positions.leave_out(bad)

    def _restore(self, watch: LoopWatch, choice: Choice, **options: Any) -> Loaded:
        """Collective. Loads a checkpoint that was chosen, and so verified."""
        return self._restorer.load(
            watch.session.peers, choice.path, choice.manifest, self._settings, options
        )

    def _go_on(self, watch: LoopWatch, loaded: Loaded, *, is_rollback: bool) -> None:
        """Collective. Puts detectors, steps and loaders where the checkpoint was."""
        saved = loaded.saved
        detectors = None if saved is None else saved.detectors
        mine = (-1, None) if saved is None else (saved.step, saved.gradients)
        step, gradients = self._agree(watch, "step of a checkpoint", mine)
        watch.gradients.watch.load(gradients)
        (watch.go_back if is_rollback else watch.resume)(step, detectors)
        if watch.seeds is not None:
            watch.seeds.has_loaded(step + 1, has_noise=loaded.has_noise, is_rollback=is_rollback)
        if not loaded.has_noise:
            name = f"random_states_{self._accelerator.process_index}.pkl"
            message = f"{loaded.path} has no {name}: this rank's generators stay as they are."
            self._say(watch, message, is_from_each=True)
        if not loaded.is_ours:
            return
        reason = self._positions.apply(
            loaded.position, world_size=self._accelerator.num_processes, step=step
        )
        if reason:
            self._say(
                watch,
                f"The data position of {loaded.path} is not used: {reason}. The loaders begin "
                "where the loop lets them begin.",
            )

    def _named(self, watch: LoopWatch, input_dir: Any) -> Path:
        """A checkpoint that is taken whether or not it was saved under the contract."""
        if input_dir is not None:
            path = Path(input_dir).expanduser()
            if not path.is_dir():
                # In the host's own words.
                raise ValueError(f"Tried to find {path} but folder does not exist")
            return path
        folders = self._folders()
        newest = None if folders is None else folders.newest()
        found = self._agree(watch, "newest folder", None if newest is None else str(newest))
        if found is None:
            raise FileNotFoundError(
                "load_state() found no checkpoint of this run, neither one saved under the "
                "contract nor one of Accelerate's own in the project's folder. To begin without "
                "one where there is none yet, use load_state('last_good')."
            )
        return Path(found)

    def _folders(self) -> NumberedFolders | None:
        project_dir = self._accelerator.project_dir
        return None if project_dir is None else NumberedFolders(project_dir)

    def _say(self, watch: LoopWatch, message: str, *, is_from_each: bool = False) -> None:
        """Says something to people and to the ledger; once, unless it is about one rank."""
        if is_from_each or self._accelerator.is_main_process:
            _log.warning(message)
            watch.session.peers.record("notice", message)

    def _agree(self, watch: LoopWatch, topic: str, value: Any) -> Any:
        """Collective. Rank 0's value on all ranks: what one of them sees on its disk or in
        a file need not be what the others see."""
        peers = watch.session.peers
        return peers.gather(topic, value, limit_s=self._settings.limit_s)[0]
