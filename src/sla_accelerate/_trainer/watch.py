"""One ``transformers.Trainer`` under the contract: what is put around its methods."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sla_accelerate import _runs
from sla_accelerate._attach import attach
from sla_accelerate._batches.order import Skip
from sla_accelerate._saved.saver import Saver
from sla_accelerate._saved.state import HeldState
from sla_accelerate._trainer import compat
from sla_accelerate._trainer.place import Place
from sla_accelerate._trainer.resume import Resume, read
from sla_accelerate._trainer.saves import HOST, Saves, shelf_of
from sla_accelerate.actions import OnStop, harm_of
from sla_accelerate.mild_actions import MildActions
from sla_accelerate.telemetry import LoopWatch
from slav1.checkpoint import Choice, Shelf
from slav1.checkpoint.errors import CheckpointError
from slav1.contract import Contract
from slav1.phase import Phase
from slav1.torch_signals import Readings

_log = logging.getLogger("sla_accelerate")


class RollbackDue(Exception):  # noqa: N818 - no error: it unwinds the loop
    """All ranks leave the loop, to enter it again at an earlier step."""

    def __init__(self, choice: Choice, skips: tuple[Skip, ...]) -> None:
        super().__init__(f"back to {choice.path}")
        self.choice = choice
        self.skips = skips


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user wants; see the callback."""

    contract: str | Contract | None
    run_dir: str | None
    on_stop: OnStop
    skips_bad_batches: bool


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class _Run:
    """What lives from the beginning of one ``train`` to its end."""

    watch: LoopWatch
    shelf: Shelf
    saves: Saves
    place: Place
    mild: MildActions

    roll_back: None = None
    """The loop is left before it asks for another batch."""


class TrainerWatch:
    """Puts one trainer under the contract."""

    def __init__(self, host: Any, wanted: Wanted, callback: Any) -> None:
        """Takes the trainer's wheel; nothing is started before ``train``.

        Args:
            host: The trainer.
            wanted: What the user wants.
            callback: Who tells of steps.
        """
        self._host = host
        self._callback = callback
        self._wanted = wanted
        self._lacks = compat.missing(host)
        self._run: _Run | None = None
        self.stopped_at: int | None = None
        """Step at whose end the contract stopped the last ``train``; None if it did not."""
        self.run_folder: Path | None = None
        """Folder of the last run."""
        self._accelerator: Any = None
        """The trainer's, under the contract; None if it was let go of."""
        self._host_class = type(host.accelerator)
        self._attach()
        compat.watch_skipping()
        self._wrap()

    def _wrap(self) -> None:
        around: dict[str, Callable[..., Any]] = {
            "train": self._train,
            "evaluate": self._evaluate,
            "predict": self._evaluate,
            "set_initial_training_values": self._work_out,
            "_inner_training_loop": self._loop,
            "_init_training_state": self._begin_state,
            "_run_epoch": self._epoch,
            "_load_rng_state": self._load_noise,
            "_save_checkpoint": self._save,
            "_load_best_model": self._load_best,
            "_finalize_training": self._finish,
        }
        for name, one in around.items():
            compat.wrap(self._host, name, one)

    # -- what the callback tells --------------------------------------------------------------

    def end_step(self, control: Any) -> None:
        """The host has counted a step; what was decided is carried out."""
        run = self._run
        if run is None:
            return
        watch = run.watch
        if watch.step < self._host.state.global_step - 1:
            # A gradient scaler has left the update out; the host counts it.
            watch.end_engine_step(Readings(is_scaled=True))
        if watch.orders.due is not None:
            self._unwind(run)
        if watch.stopped_at is not None:
            self.hold(control)
        elif run.saves.is_due(watch.step) and not control.should_save:
            self._save_own(run)

    def end_epoch(self, control: Any) -> None:
        """The host has gone through an epoch."""
        if self._run is not None:
            self._run.watch.end_epoch()
            self.hold(control)

    def hold(self, control: Any) -> None:
        """After a stop: nothing is logged, evaluated or saved of a state in breach."""
        if self._run is not None and self._run.watch.stopped_at is not None:
            control.should_training_stop = True
            control.should_log = control.should_evaluate = control.should_save = False

    # -- around the host's methods ------------------------------------------------------------

    def _train(
        self,
        train: Callable[..., Any],
        /,
        resume_from_checkpoint: Any = None,
        *args: Any,
        **kw: Any,
    ) -> Any:
        if not compat.is_told(self._host, self._callback):
            self._let_go()
            return train(resume_from_checkpoint, *args, **kw)
        trial = kw.get("trial", args[0] if args else None)
        try:
            run = self._begin(trial)
            path = self._resume(run, resume_from_checkpoint)
            result = train(None if path is None else str(path), *args, **kw)
        except BaseException as error:
            self._leave(error)
            raise
        self._leave(None)
        # A launcher starts again only what ended by an error.
        if run.watch.orders.wants_restart or (
            self.stopped_at is not None and self._wanted.on_stop == "raise"
        ):
            raise run.watch.stop_error()
        return result

    def _evaluate(self, evaluate: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with self._aside(Phase.EVALUATION):
            return evaluate(*args, **kwargs)

    def _work_out(self, work_out: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        values = work_out(*args, **kwargs)
        return values if self._run is None else self._run.place.values(values)

    def _loop(self, loop: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self._run is not None and self._host.accelerator is not self._accelerator:
            # A search for parameters makes another one.
            self._attach()
        while True:
            try:
                return loop(*args, **kwargs)
            except RollbackDue as due:
                kwargs["resume_from_checkpoint"] = self._go_back(due)

    def _begin_state(self, begin: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        begun = begin(*args, **kwargs)
        return begun if self._run is None else self._run.place.begin(begun)

    def _epoch(self, epoch: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self._run is None:
            return epoch(*args, **kwargs)
        compat.keep_in_accelerator(self._host)
        self._run.watch.prepared.add(self._host.model_wrapped)
        return self._run.place.epoch(epoch, **kwargs)

    def _load_noise(self, load: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self._run is not None and self._run.place.is_taken_up:
            # It is where it belongs, with account taken of what was fetched ahead.
            return None
        return load(*args, **kwargs)

    def _save(self, save: Callable[..., Any], /, model: Any, trial: Any = None) -> None:
        if self._run is None:
            save(model, trial)
            return
        with self._aside(Phase.CHECKPOINT):
            self._run.watch.tell_workers()
            self._run.saves.save(lambda: save(model, trial), trial=trial)

    def _load_best(self, load: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        run = self._run
        if run is None:
            return load(*args, **kwargs)
        if run.watch.stopped_at is not None:
            self._say("The best model is not loaded: the weights stay those of the stop.")
            return None
        with self._aside(Phase.CHECKPOINT):
            run.saves.check(Path(self._host.state.best_model_checkpoint))
            return load(*args, **kwargs)

    def _finish(self, finish: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self._run is None:
            return finish(*args, **kwargs)
        # The host would remove all checkpoints but the best one, among them the last good one.
        settings = self._host.args
        limit, settings.save_total_limit = settings.save_total_limit, None
        try:
            return finish(*args, **kwargs)
        finally:
            settings.save_total_limit = limit

    # -- one train ----------------------------------------------------------------------------

    def _attach(self) -> None:
        wanted = self._wanted
        self._accelerator = attach(
            self._host.accelerator,
            contract=wanted.contract,
            run_dir=wanted.run_dir,
            on_stop="flag",
            skip_bad_batches=wanted.skips_bad_batches,
        )

    def _let_go(self) -> None:
        """The callback was removed: the host trains as if it had never been there."""
        self.stopped_at = self.run_folder = None
        if self._accelerator is not None:
            self._accelerator.__class__ = self._host_class
            self._accelerator = None
            _log.warning("The SLATrainerCallback was removed: this trainer is not watched.")

    def _begin(self, trial: Any) -> _Run:
        """Collective. Joins the run, on all ranks."""
        self.stopped_at = None
        if self._accelerator is None:
            self._attach()
        compat.put_last(self._host, self._callback)
        watch: LoopWatch = self._accelerator._sla_begin()
        self.run_folder = watch.session.run_folder
        watch.is_driven()
        watch.orders.advice = (
            "Call train(resume_from_checkpoint='last_good'); at a first start it begins afresh."
        )
        shelf = shelf_of(self._host, watch, trial)
        saves = Saves(self._host, watch, shelf, self._saver)
        place = Place(self._host, watch, lambda: self._accelerator._sla_positions)
        mild = MildActions(saves.saver, self._accelerator._sla_positions, lambda _: shelf)
        self._run = _Run(watch=watch, shelf=shelf, saves=saves, place=place, mild=mild)
        # The run asks it for what it carries out.
        self._kept, self._accelerator._sla_checkpoints = (
            self._accelerator._sla_checkpoints,
            self._run,
        )
        self._accelerator._sla_begin()
        if watch.session.contract.checkpoint.background:
            self._say(
                "checkpoint.background has no effect in a transformers.Trainer: it stands still "
                "while a checkpoint is written."
            )
        if self._lacks:
            self._say(
                f"This transformers.Trainer lacks {', '.join(self._lacks)}: no rollback, and a "
                "resumed epoch goes on where the host lets it."
            )
        return self._run

    def _saver(self, write: Callable[..., None]) -> Saver:
        accelerator = self._accelerator

        def held() -> HeldState:
            return HeldState(accelerator, accelerator._models, accelerator._optimizers)

        return Saver(
            accelerator,
            save=write,
            held=held,
            positions=accelerator._sla_positions,
            host=HOST,
        )

    def _leave(self, error: BaseException | None) -> None:
        run, self._run = self._run, None
        if run is not None:
            self.stopped_at = run.watch.stopped_at
            self._accelerator._sla_checkpoints = self._kept
        _runs.end(error)

    def _resume(self, run: _Run, asked: Any) -> Path | None:
        """Collective. What to load, and everything that lies in it beside the host's files."""
        session, limit_s = run.watch.session, run.watch.session.contract.checkpoint.limit_s
        with self._aside(Phase.CHECKPOINT):
            path = Resume(self._host, session, run.shelf, limit_s=limit_s).path(asked)
            if path is not None:
                loaded = read(path, session, limit_s=limit_s)
                if self._host.args.ignore_data_skip:
                    # The user would rather begin an epoch anew than draw its batches once more.
                    loaded = loaded._replace(position=None)
                run.place.load(loaded, is_rollback=False)
        return path

    def _save_own(self, run: _Run) -> None:
        with self._aside(Phase.CHECKPOINT):
            save = compat.method_of(self._host, "_save_checkpoint")
            run.saves.save_own(lambda: save(self._host.model_wrapped, None))

    # -- the way back -------------------------------------------------------------------------

    def _unwind(self, run: _Run) -> None:
        """Collective. Leaves the loop to go back, or stops if there is no way back.

        Raises:
            RollbackDue: On all ranks.
        """
        watch = run.watch
        decision = watch.orders.due
        assert decision is not None
        harm = harm_of(decision, watch.step)
        positions = self._accelerator._sla_positions
        skips: tuple[Skip, ...] = ()
        if self._wanted.skips_bad_batches and harm.are_batches_bad:
            bad = positions.batches_of(harm.onset_step, harm.alarm_step)
            skips = tuple(one for of_loader in bad for one in of_loader)
        reason = compat.why_no_way_back(self._host, self._lacks)
        choice = None
        try:
            if not reason:
                choice = run.shelf.choose(before_step=harm.onset_step)
                reason = "it has no checkpoint yet; save_strategy and save_steps make them."
        except CheckpointError as error:
            reason = str(error)
        if choice is None:
            watch.orders.stop_instead(watch, reason)
            return
        raise RollbackDue(choice, skips)

    def _go_back(self, due: RollbackDue) -> str:
        """Collective. Loads the weights; the host loads the rest when it enters its loop again."""
        run = self._run
        assert run is not None
        session = run.watch.session
        limit_s = session.contract.checkpoint.limit_s
        with self._aside(Phase.CHECKPOINT):
            # Before other tensors take the place of those that are looked at.
            run.watch.replicas.forget()
            compat.load_weights(self._host, due.choice.path)
            run.place.load(
                read(due.choice.path, session, limit_s=limit_s), skips=due.skips, is_rollback=True
            )
            # Before this rank says that it is back: a later start must not find what is newer.
            run.shelf.rolled_back(due.choice)
        compat.begin_again(self._host)
        return str(due.choice.path)

    def _aside(self, phase: Phase) -> AbstractContextManager[None]:
        run = self._run
        return nullcontext() if run is None or run.watch.is_over else run.watch.aside(phase)

    def _say(self, message: str) -> None:
        if self._run is not None and self._run.watch.session.rank == 0:
            _log.warning(message)
            self._run.watch.session.note(message)
