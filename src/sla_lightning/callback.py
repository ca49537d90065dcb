"""The one callback that puts a Lightning training under the contract."""

import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from sla_lightning import _compat
from sla_lightning._inject import FaultPoints
from sla_lightning.actions import StopRequested, drive
from sla_lightning.telemetry import LossReader, OwnWorkEnd, non_finite_flags
from slav1.contract import Contract
from slav1.decision import Action
from slav1.phase import Phase
from slav1.recorder import Recorder, layout
from slav1.session import RunSettings, Session, join
from slav1.session.rendezvous import job_rendezvous
from slav1.session.settings_source import resolve
from slav1.testing import planned_faults

WARMUP_STEPS = 3
"""First steps of a process: they compile, allocate and fill caches."""

STATE_VERSION = 1
"""Version of what the callback keeps in a checkpoint."""

_DATA, _FORWARD, _OPTIMIZER = int(Phase.DATA), int(Phase.FORWARD), int(Phase.OPTIMIZER)
_BACKWARD, _BETWEEN, _EVALUATION = int(Phase.BACKWARD), int(Phase.BETWEEN), int(Phase.EVALUATION)

_log = logging.getLogger("sla_lightning")


class SLACallback(Callback):
    """Watches a training by a stability contract, and stops it when the contract says so.

    Adding it to ``Trainer(callbacks=[...])`` is the whole adoption. It measures in the
    trainer and judges outside of it, so a rank that hangs or dies is found as well. A
    stop is carried out by all ranks at the end of the same step: ``fit`` then returns
    without validating and without saving the state in breach, and :attr:`stopped_at`
    says at which step.

    Only ``lightning.pytorch`` is supported, not the separate ``pytorch_lightning``.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[SLACallback("L1")], logger=False)
    """

    def __init__(
        self,
        contract: str | Contract | None = None,
        run_dir: str | None = None,
    ) -> None:
        """Stores the settings; nothing is started before ``fit``.

        Args:
            contract: ``L1``, ``L2``, ``L3``, the path of a contract file, or a
                ``Contract``. Default: ``SLA_CONTRACT``, else ``L1``.
            run_dir: Folder in which each run gets a folder of its own. Default:
                ``SLA_RUN_DIR``, else ``sla_runs``.
        """
        self._contract = contract
        self._run_dir = run_dir
        self.stopped_at: int | None = None
        """Step at whose end the contract stopped the last ``fit``; None if it did not."""
        self.run_folder: Path | None = None
        """Folder of the last run."""
        self._run: _Run | None = None
        self._loaded: Any = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Joins the run, on all ranks."""
        if stage != "fit":
            return
        if any(isinstance(c, SLACallback) and c is not self for c in trainer.callbacks):  # type: ignore[attr-defined]
            raise ValueError("callbacks holds two SLACallbacks; one watches everything. Remove one.")
        self.stopped_at, self._loaded = None, None
        settings = resolve(self._contract, self._run_dir, os.environ)
        session = join(
            RunSettings(
                contract=settings.contract,
                run_dir=settings.run_dir,
                rank=trainer.global_rank,
                local_rank=trainer.local_rank,
                world_size=trainer.world_size,
                node=trainer.node_rank,
                num_nodes=trainer.num_nodes,
            ),
            job_rendezvous(),
        )
        self.run_folder = session.run_folder
        # A new list: the host is iterating over the old one. First, so that a stop comes
        # before whatever another callback would do with a state in breach.
        host: Any = trainer
        host.callbacks = [self, *(c for c in host.callbacks if c is not self)]
        self._run = _Run(trainer, pl_module, session)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compares the ranks' data and goes on from saved memories."""
        run = self._running()
        num_batches = trainer.num_training_batches
        run.session.compare(num_batches=int(num_batches) if math.isfinite(num_batches) else None)
        if self._loaded is not None and trainer.is_global_zero:
            run.session.restore(self._loaded)
        run.start_training()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The batch is there: the forward begins."""
        run = self._running()
        run.batch = batch
        run.recorder.count_batch()
        run.recorder.enter(_FORWARD)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """The loss is there: the backward begins."""
        self._running().begin_backward(loss)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The gradients are there, those of the other ranks included."""
        self._running().end_backward()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """The step ends here if the optimizer has made one."""
        action = self._running().end_batch(outputs)
        if action is not None:
            self._carry_out(action)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluation has limits of its own."""
        if self._run is not None:
            self._run.recorder.enter(_EVALUATION)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Each validation batch is progress."""
        if self._run is not None:
            self._run.recorder.enter(_EVALUATION)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to where the evaluation was called from."""
        if self._run is not None:
            self._run.resume_steps()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """No step comes any more."""
        run = self._running()
        run.losses.drain()
        run.recorder.enter(int(Phase.TEARDOWN))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves the run in good order."""
        self._leave("finished")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Publishes what went wrong before anything is torn down."""
        if self._run is not None:
            self._run.session.fail(exception, trainer.global_step)
            self._leave(type(exception).__name__)

    def state_dict(self) -> dict[str, Any]:
        """The detectors' memories, as plain values; from rank 0, where they are saved."""
        if self._run is None or self._run.session.rank != 0:
            return {}
        memories = self._run.session.ask_state()
        return {} if memories is None else {"version": STATE_VERSION, "detectors": memories}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps saved memories for the start of training."""
        version = state_dict.get("version")
        if version == STATE_VERSION:
            self._loaded = state_dict.get("detectors")
        elif version is not None:
            _log.warning(
                "The checkpoint holds SLA state of version %s, this is version %s; the detectors "
                "start afresh.",
                *(version, STATE_VERSION),
            )

    def __getstate__(self) -> dict[str, Any]:
        """Settings only: sockets and shared memory stay in their process."""
        return {**vars(self), "_run": None}

    def _running(self) -> "_Run":
        assert self._run is not None, "training hooks come after setup('fit')"
        return self._run

    def _carry_out(self, action: Action) -> None:
        run = self._running()
        self.stopped_at = run.step
        run.session.confirm(run.step)
        raise StopRequested(action.name)

    def _leave(self, reason: str) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()
            run.session.leave(reason)


class _Run:
    """One ``fit`` under watch: what lives from its setup to its end."""

    def __init__(self, trainer: Trainer, module: LightningModule, session: Session) -> None:
        self.session = session
        self.recorder: Recorder = session.recorder
        self.losses = LossReader(session.recorder)
        self.step = trainer.global_step - 1
        self.batch: Any = None
        self._trainer = trainer
        self._module = module
        self._flags = 0
        self._num_steps = 0
        self._is_synced = False
        self._resume_phase = int(Phase.SETUP)
        self._own_work_end: OwnWorkEnd | None = None
        planned = planned_faults(trainer.global_rank, trainer.world_size)
        self._faults = None if planned is None else FaultPoints(planned, trainer, module)
        host: Any = trainer
        self._host_save = trainer.save_checkpoint
        host.save_checkpoint = self._save_checkpoint
        missing = _compat.missing_names(trainer)
        if missing:
            session.note(
                f"This Lightning lacks {', '.join(missing)}: data waits are not measured and a "
                "stop leaves fit() by an exception."
            )
            return
        _compat.watch_fetches(trainer, self._before_fetch, self._after_fetch)
        _compat.wrap_run(trainer, lambda run: drive(trainer, session, run))

    def start_training(self) -> None:
        """The first batch comes next."""
        self.step = self._trainer.global_step - 1
        self._resume_phase = _BETWEEN
        self.recorder.enter(_BETWEEN)
        self.recorder.forget_times()
        if self._trainer.world_size > 1:
            self._own_work_end = OwnWorkEnd(self._module, self.recorder.own_work_ends)

    def begin_backward(self, loss: Tensor) -> None:
        """Enters the backward; looks for what is not finite while it can be told apart."""
        if loss.device.type == "cpu" and not math.isfinite(loss.item()):
            self._flags |= non_finite_flags(self.batch, self._module)
        if not self._module.automatic_optimization:
            self.losses.add(loss)
        model: Any = self._trainer.strategy.model
        self._is_synced = self._own_work_end is not None and getattr(
            model, "require_backward_grad_sync", True
        )
        if self._is_synced:
            self.recorder.enter_synced_backward()
        else:
            self.recorder.enter(_BACKWARD)
        if self._faults is not None:
            self._faults.at("backward")

    def end_backward(self) -> None:
        """Leaves the backward."""
        if self._is_synced:
            self.recorder.leave_synced_backward(_OPTIMIZER)
            assert self._own_work_end is not None
            if not self._own_work_end.is_settled and self._num_steps >= 1:
                self._own_work_end.settle()
        else:
            self.recorder.enter(_OPTIMIZER)
        if self._faults is not None:
            self._faults.before_optimizer()

    def end_batch(self, outputs: Any) -> Action | None:
        """Leaves the batch; at an optimizer step also writes it down and asks what to do."""
        self.recorder.enter(_BETWEEN)
        if self._module.automatic_optimization:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if isinstance(loss, Tensor):
                self.losses.add(loss)
        step = self._trainer.global_step - 1
        if step == self.step:
            return None
        self.step = step
        flags = self._flags
        self._flags = 0
        if self._num_steps < WARMUP_STEPS:
            flags |= layout.IS_WARMUP
        self._num_steps += 1
        scale = self._trainer.accumulate_grad_batches if self._module.automatic_optimization else 1
        batch = self._trainer.fit_loop.total_batch_idx
        self.losses.end_step(step, scale=scale, batch=batch, flags=flags)
        if self._faults is not None:
            self._faults.at("step_end")
        return self.session.at_boundary(step)

    def resume_steps(self) -> None:
        """An evaluation or a save is over; it is no part of a step."""
        self.recorder.enter(self._resume_phase)
        self.recorder.forget_times()

    def close(self) -> None:
        """Gives the host back what was wrapped."""
        host: Any = self._trainer
        host.save_checkpoint = self._host_save
        vars(host).pop("save_checkpoint", None)
        _compat.reset_driver(self._trainer)
        if self._own_work_end is not None:
            self._own_work_end.remove()
        if self._faults is not None:
            self._faults.remove()

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.recorder.enter(int(Phase.CHECKPOINT))
        try:
            self._host_save(*args, **kwargs)
        finally:
            self.resume_steps()

    def _before_fetch(self) -> None:
        self.recorder.enter(_DATA)
        if self._faults is not None:
            self._faults.at("data")

    def _after_fetch(self) -> None:
        self.recorder.enter(_BETWEEN)
