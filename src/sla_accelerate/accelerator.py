"""The drop-in for ``accelerate.Accelerator`` that puts a loop under the contract."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet, ref

from torch import Tensor, nn
from torch.optim import Optimizer

from sla_accelerate import _runs
from sla_accelerate._compat import is_watched, watch_fetches
from sla_accelerate._place import words_of_launcher
from sla_accelerate._position import Positions
from sla_accelerate._restore import Restorer
from sla_accelerate._saver import Saver
from sla_accelerate._seeds import LoopSeeds
from sla_accelerate._state import HeldState, has_scaler, is_replicated
from sla_accelerate._told import ToldAccelerator
from sla_accelerate.actions import Mild, RollBack, check_on_stop
from sla_accelerate.checkpoint import Checkpoints
from sla_accelerate.telemetry import LoopWatch
from slav1.contract import Contract
from slav1.phase import Phase
from slav1.session.settings_source import resolve


class SLAAccelerator(ToldAccelerator):
    """An ``accelerate.Accelerator`` whose training is watched by a stability contract.

    The loop stays as it is. It measures in the trainer and judges outside of it, so a
    rank that hangs or dies is found as well. All ranks join the run at the first
    ``prepare``. A step ends with a real optimizer step; with several optimizers, once
    an iteration. When the contract stops training, ``optimizer.step()`` raises
    :class:`~sla_accelerate.TrainingStoppedError` on all ranks at the end of the same
    step. ``end_training()`` leaves the run.

    An evaluation is recognised by gradients being off, by no prepared model being in
    training mode, or by the end of an epoch. Another one, longer than the contract lets a
    step last (``hang.limit_s``), belongs into :meth:`sla_phase`.

    All objects of this class in one process share one run, as they share Accelerate's
    own state. DDP and one process are supported; with sharded models steps, losses and
    stops work too, but waiting for other ranks is not told from own work.

    Example:
        >>> accelerator = SLAAccelerator(contract="L1", cpu=True)
        >>> accelerator.sla_stopped_at is None
        True
    """

    def __init__(
        self,
        *args: Any,
        contract: str | Contract | None = None,
        run_dir: str | None = None,
        on_stop: str = "raise",
        skip_bad_batches: bool = True,
        **kwargs: Any,
    ) -> None:
        """Stores the settings; nothing is started before the first ``prepare``.

        Args:
            args: As for ``accelerate.Accelerator``.
            contract: ``L1``, ``L2``, ``L3``, the path of a contract file, or a
                ``Contract``. Default: ``SLA_CONTRACT``, else ``L1``.
            run_dir: Folder in which each run gets a folder of its own. Default:
                ``SLA_RUN_DIR``, else ``sla_runs``.
            on_stop: ``raise`` ends the loop by ``TrainingStoppedError``; ``flag`` only
                turns :attr:`sla_should_stop` on, and the loop must look at it after
                each step.
            skip_bad_batches: Whether a rollback leaves out the batches of the bad steps;
                otherwise they are tried again.
            kwargs: As for ``accelerate.Accelerator``.

        Raises:
            ValueError: If ``on_stop`` is neither, or the contract can't be used.
        """
        self._sla_on_stop = check_on_stop(on_stop)
        self._sla_settings = resolve(contract, run_dir, os.environ)
        self._sla_launcher = words_of_launcher(os.environ)
        self._sla_objects: WeakSet[nn.Module | Optimizer] = WeakSet()
        self._sla_positions = Positions()
        self._sla_has_run = False
        super().__init__(*args, **kwargs)
        self._sla_seed = _runs.seed_for(self, self._sla_settings)
        self._sla_checkpoints = self._sla_shelve(skips_bad_batches=skip_bad_batches)

    @property
    def sla_should_stop(self) -> bool:
        """Whether the contract has stopped training; turns True on all ranks at the end
        of the same step."""
        return _runs.stopped() is not None

    @property
    def sla_stopped_at(self) -> int | None:
        """Step at whose end the contract stopped training; None if it did not."""
        watch = _runs.stopped()
        return None if watch is None else watch.stopped_at

    @property
    def sla_run_folder(self) -> Path | None:
        """Folder of the run; None if there is none."""
        watch = _runs.current() or _runs.stopped()
        return None if watch is None else watch.session.run_folder

    @property
    def sla_step(self) -> int:
        """Step of the run that ended last, from 0; -1 before the first. Unlike a counter in
        the loop it goes back with a rollback, and on after a resume."""
        watch = _runs.current() or _runs.stopped()
        return -1 if watch is None else watch.step

    def sla_epochs(self, num_epochs: int) -> Iterator[int]:
        """What to loop over instead of ``range(num_epochs)``.

        Begins with the epoch that was resumed, and comes to an epoch again if a rollback went
        back over its end: what the loop does at the end of an epoch is done again then. With
        ``range`` the loop over the batches goes on into the next epoch instead.

        Args:
            num_epochs: As for ``range``.
        """
        positions = self._sla_positions
        while positions.epoch < num_epochs:
            positions.set_chaining(chains_epochs=False)
            yield positions.epoch
            positions.epoch += 1

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """As the host's; joins the run first."""
        self._sla_begin()
        prepared = super().prepare(*args, **kwargs)
        for item in prepared if isinstance(prepared, tuple) else (prepared,):
            self._sla_adopt(item)
        return prepared

    def prepare_model(self, *args: Any, **kwargs: Any) -> Any:
        """As the host's; the model is watched."""
        return self._sla_adopt(super().prepare_model(*args, **kwargs))

    def prepare_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """As the host's; the optimizer is watched."""
        return self._sla_adopt(super().prepare_optimizer(*args, **kwargs))

    def prepare_data_loader(self, *args: Any, **kwargs: Any) -> Any:
        """As the host's; the loader is watched."""
        loader = super().prepare_data_loader(*args, **kwargs)
        watch_fetches(loader, _runs.current)
        self._sla_positions.add(loader)
        return loader

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """As the host's; what it makes of a prepared loader is watched too."""
        skipping = super().skip_first_batches(dataloader, num_batches)
        if hasattr(dataloader, "iteration"):
            # Hosts up to 1.13 begin with the first epoch again.
            skipping.iteration = dataloader.iteration
        if is_watched(dataloader):
            watch_fetches(skipping, _runs.current, origin=dataloader, offset=num_batches)
        return skipping

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """As the host's.

        Raises:
            TrainingStoppedError: If the contract has stopped training and the loop went on.
                With DeepSpeed, whose steps end here, also at the step of the stop.
        """
        watch = _runs.current() or self._sla_go_on()
        loss = watch.begin_backward(loss)
        num_before = self._sla_engine_steps()
        super().backward(loss, **kwargs)
        watch.end_backward(has_gradients=self.sync_gradients)
        if self._sla_engine_steps() != num_before:
            watch.end_engine_step(self.deepspeed_engine_wrapped.engine.get_global_grad_norm())

    def clip_grad_norm_(self, parameters: Any, max_norm: Any, norm_type: Any = 2) -> Any:
        """As the host's; the contract takes the norm that it computes."""
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        norm = super().clip_grad_norm_(parameters, max_norm, norm_type=norm_type)
        watch = _runs.current()
        if watch is not None and norm_type == 2 and not hasattr(norm, "to_local"):
            watch.note_norm(parameters, norm)
        return norm

    def save_state(self, output_dir: Any = None, *args: Any, **kwargs: Any) -> Path | None:
        """Collective. As the host's, but proved: written aside, read back, voted on and only
        then a checkpoint. Older ones are removed afterwards, and never the last good ones.

        Once the run is over, as after a stop, it is only written: nothing of it is proved.

        Returns:
            Where it lies. None if it could not be saved: what was there before is untouched,
            training goes on, and the ledger says why.

        Raises:
            SaveFailedError: On all ranks, if too many saves failed in a row
                (``checkpoint.max_failed_saves``).
        """
        if _runs.current() is None and self._sla_has_run:
            return self._sla_checkpoints.save_unproved(output_dir, *args, **kwargs)
        watch = self._sla_begin()
        with watch.aside(Phase.CHECKPOINT):
            watch.tell_workers()
            return self._sla_checkpoints.save(watch, output_dir, *args, **kwargs)

    def load_state(
        self, input_dir: Any = None, load_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> Path | None:
        """Collective. As the host's, but nothing is loaded before all of it is verified on
        all ranks.

        The next pass over each prepared loader goes on where the saved one was. Steps are
        counted on from the saved one if this process has not made any yet.

        Args:
            input_dir: A folder; ``last_good`` for the newest checkpoint of this run that
                verifies, if there is one; None for the same with automatic naming.
            load_kwargs: As for the host.
            kwargs: As for the host.

        Returns:
            What was loaded; None if ``last_good`` found none because the run has none yet.

        Raises:
            CheckpointError: On all ranks, if it is damaged or can't be loaded.
        """
        if input_dir is None and not self.project_configuration.automatic_checkpoint_naming:
            raise ValueError("No input_dir provided and automatic checkpoint naming is disabled.")
        watch = self._sla_begin()
        # Before other tensors take the place of those that are looked at.
        watch.replicas.forget()
        with watch.aside(Phase.CHECKPOINT):
            return self._sla_checkpoints.load(watch, input_dir, load_kwargs=load_kwargs, **kwargs)

    def free_memory(self, *objects: Any) -> Any:
        """As the host's; the contract lets go of them too."""
        self._sla_objects.clear()
        self._sla_positions.clear()
        watch = _runs.current()
        if watch is not None:
            watch.forget_objects()
        return super().free_memory(*objects)

    def end_training(self) -> None:
        """As the host's; leaves the run first.

        Called while an exception is on its way out, it publishes that exception.
        """
        _runs.end(sys.exc_info()[1])
        super().end_training()

    def _sla_begin(self) -> LoopWatch:
        is_new = _runs.current() is None
        self._sla_has_run = True
        watch = _runs.begin(self, self._sla_settings, self._sla_on_stop, self._sla_launcher)
        watch.positions = self._sla_positions
        find_checkpoints = ref(self._sla_checkpoints)

        def find_rollback() -> RollBack | None:
            checkpoints = find_checkpoints()
            return None if checkpoints is None else checkpoints.roll_back

        def find_mild() -> Mild | None:
            checkpoints = find_checkpoints()
            return None if checkpoints is None else checkpoints.mild

        watch.orders.find_rollback = find_rollback
        watch.orders.find_mild = find_mild
        watch.gradients.are_whole = is_replicated(self)
        watch.gradients.has_scaler = has_scaler(self)
        if is_new:
            held = ref(self)
            watch.seeds = LoopSeeds(
                watch.session,
                choice=self._sla_seed,
                find_weights=lambda: _replicas_of(held()),
                faults=watch.faults,
            )
            for item in self._sla_objects:
                watch.prepared.add(item)
        return watch

    def _sla_go_on(self) -> LoopWatch:
        """A backward without an open run: the first one of all, or one after a stop."""
        stopped = _runs.stopped()
        if stopped is not None:
            raise stopped.stop_error()
        return self._sla_begin()

    def _sla_engine_steps(self) -> int:
        """Steps that DeepSpeed has made: its engine makes them inside of ``backward``."""
        wrapped = getattr(self, "deepspeed_engine_wrapped", None)
        if wrapped is None:
            return 0
        return int(wrapped.engine.global_steps - wrapped.engine.skipped_steps)

    def _sla_adopt(self, item: Any) -> Any:
        if isinstance(item, nn.Module | Optimizer):
            self._sla_objects.add(item)
            self._sla_begin().prepared.add(item)
        return item

    def _sla_shelve(self, *, skips_bad_batches: bool) -> Checkpoints:
        def held() -> HeldState:
            return HeldState(self, self._models, self._optimizers)

        restorer = Restorer(
            self,
            load=super().load_state,
            held=held,
            num_custom=lambda: len(self._custom_objects),
        )
        saver = Saver(self, save=super().save_state, held=held, positions=self._sla_positions)
        return Checkpoints(
            self,
            saver=saver,
            restorer=restorer,
            settings=self._sla_settings.contract.checkpoint,
            positions=self._sla_positions,
            skips_bad_batches=skips_bad_batches,
        )


def _replicas_of(accelerator: Any) -> dict[str, Tensor]:
    """What all ranks hold alike of an accelerator's models; nothing of one that is gone."""
    if accelerator is None:
        return {}
    return HeldState(accelerator, accelerator._models, accelerator._optimizers).replicas()  # noqa: SLF001 - as its own methods do
