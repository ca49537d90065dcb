"""The drop-in for ``accelerate.Accelerator`` that puts a loop under the contract."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate.utils.deepspeed import DummyOptim  # type: ignore[import-untyped]
from torch import Tensor, tensor
from torch.optim import Optimizer

from sla_accelerate import _runs
from sla_accelerate._compat import is_watched, watch_fetches
from sla_accelerate._gradients import are_all_of_one, are_parts_of_one_mesh, clip_parts
from sla_accelerate._joining import JoiningAccelerator
from sla_accelerate._saved.state import is_fsdp1
from sla_accelerate._wishes import listen, wish
from slav1.contract import Contract
from slav1.phase import Phase


class SLAAccelerator(JoiningAccelerator):
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
    own state. One process, DDP, FSDP and DeepSpeed are supported; where models are sharded
    waiting for other ranks can't be told from own work, so nobody is called slow there.

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
        log_figures: bool = False,
        **kwargs: Any,
    ) -> None:
        """Stores the settings; nothing is started before the first ``prepare``.

        Args:
            args: As for ``accelerate.Accelerator``.
            contract: ``L1``, ``L2``, ``L3``, the path of a contract file, or a
                ``Contract``. Default: ``SLA_CONTRACT``, else the block ``sla`` of Accelerate's
                own file, else ``L1``.
            run_dir: Folder in which each run gets a folder of its own. Default:
                ``SLA_RUN_DIR``, else that of the block, else ``sla_runs``.
            on_stop: ``raise`` ends the loop by ``TrainingStoppedError``; ``flag`` only
                turns :attr:`sla_should_stop` on, and the loop must look at it after
                each step.
            skip_bad_batches: Whether a rollback leaves out the batches of the bad steps;
                otherwise they are tried again.
            log_figures: Whether what :meth:`log` is given goes to the trackers with the
                contract's own figures: times of the newest step, 99 % of the waits for
                sync, noise of the loss, growth of memory and share of useful time, all of
                the main process, as ``sla/...``.
            kwargs: As for ``accelerate.Accelerator``.

        Raises:
            ValueError: If ``on_stop`` is neither; on all ranks, if one of them can't use its
                contract, or they have different ones.
        """
        wishes = wish(
            contract,
            run_dir,
            on_stop=on_stop,
            skip_bad_batches=skip_bad_batches,
            log_figures=log_figures,
        )
        launcher = listen()
        super().__init__(*args, **kwargs)
        self._sla_set_up(wishes, launcher)

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
    def sla_last_step(self) -> int:
        """Step of the run that ended last, from 0; -1 before the first. Unlike a counter in
        the loop it goes back with a rollback, and on after a resume."""
        watch = _runs.current() or _runs.stopped()
        return -1 if watch is None else watch.step

    def sla_step(self, loss: Any) -> None:
        """Collective. Says that one optimizer step is over, where it can't be seen.

        For a loop that steps an optimizer which was not prepared, or an engine of its own. All
        ranks call it, once after each update. Where a prepared optimizer has ended the
        step since the last call it changes nothing, so it may stand in any loop. What is
        known of the step is the loss, its time and, with a prepared loader, its batch: an
        update can't be left out, and its gradient is not looked at.

        Args:
            loss: Mean loss of the step: a number, or a tensor with one element. Not looked at
                if :meth:`backward` was given some.

        Raises:
            ValueError: If it is more than one number.
            TrainingStoppedError: At the end of the step at which the contract stops training.
        """
        value = loss if isinstance(loss, Tensor) else tensor(float(loss))
        if value.numel() != 1:
            raise ValueError(
                f"sla_step needs the mean loss of the step, got a tensor of shape "
                f"{tuple(value.shape)}."
            )
        self._sla_watch().end_own_step(value)

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
        """As the host's; joins the run first if there is an optimizer."""
        if any(isinstance(arg, Optimizer | DummyOptim) for arg in args):
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
        self._sla_follow(loader)
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
        watch = self._sla_watch()
        loss = watch.begin_backward(loss)
        wrapped = getattr(self, "deepspeed_engine_wrapped", None)
        updates = None if wrapped is None else watch.gradients.of_engine(wrapped.engine)
        super().backward(loss, **kwargs)
        watch.end_backward(has_gradients=self.sync_gradients)
        made = None if updates is None else updates.look()
        if made is not None:
            watch.end_engine_step(made)

    def clip_grad_norm_(self, parameters: Any, max_norm: Any, norm_type: Any = 2) -> Any:
        """As the host's; the contract takes the norm that it computes."""
        if isinstance(parameters, Tensor):
            # Some hosts take it for its rows, and clip nothing: that is theirs.
            return super().clip_grad_norm_(parameters, max_norm, norm_type=norm_type)
        parameters = list(parameters)
        if norm_type != 2:
            return super().clip_grad_norm_(parameters, max_norm, norm_type=norm_type)
        if are_parts_of_one_mesh(parameters):
            self.unscale_gradients()
            norm = clip_parts(parameters, max_norm)
            is_alike = norm.device_mesh.size() == self.num_processes
        else:
            norm = super().clip_grad_norm_(parameters, max_norm, norm_type=norm_type)
            is_alike = is_fsdp1(self) and are_all_of_one(parameters, self._models)
        watch = _runs.current()
        if watch is not None:
            held = norm.to_local() if hasattr(norm, "to_local") else norm
            watch.note_norm(parameters, held, is_alike=is_alike)
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
            ValueError: If there is no such folder, or none is named without automatic naming.
            FileNotFoundError: If none is named and there is none.
        """
        if input_dir is None and not self.project_configuration.automatic_checkpoint_naming:
            raise ValueError("No input_dir provided and automatic checkpoint naming is disabled.")
        watch = self._sla_begin()
        # Before other tensors take the place of those that are looked at.
        watch.replicas.forget()
        with watch.aside(Phase.CHECKPOINT):
            return self._sla_checkpoints.load(watch, input_dir, load_kwargs=load_kwargs, **kwargs)

    def log(self, values: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """As the host's; with ``log_figures`` the contract's figures come along."""
        watch = _runs.current()
        if watch is not None and watch.figures is not None and self.is_main_process:
            values = {**watch.figures.read(), **values}
        super().log(values, *args, **kwargs)

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
