"""From the host to the recorder: phases, losses and step boundaries of one ``fit``."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from sla_lightning import _compat
from sla_lightning._inject import FaultPoints
from sla_lightning.metrics import StepMetrics
from sla_lightning.rollback import Batches
from slav1.decision import Action
from slav1.gradients import EngineUpdates, GradientWatch, leaves_out
from slav1.phase import Phase
from slav1.recorder import Recorder, layout
from slav1.replicas import Found, ReplicaWatch, StepReplay, find_copies
from slav1.session import Session
from slav1.testing import Faults
from slav1.torch_memory import DeviceMemory
from slav1.torch_own_work import OwnWorkEnd
from slav1.torch_signals import WARMUP_STEPS, LossReader, non_finite_flags

_DATA, _FORWARD, _OPTIMIZER = int(Phase.DATA), int(Phase.FORWARD), int(Phase.OPTIMIZER)
_BACKWARD, _BETWEEN, _EVALUATION = (
    int(Phase.BACKWARD),
    int(Phase.BETWEEN),
    int(Phase.EVALUATION),
)


class FitWatch:
    """One ``fit`` under watch: what lives from its setup to its end."""

    def __init__(
        self,
        trainer: Trainer,
        module: LightningModule,
        session: Session,
        faults: Faults | None,
        batches: Batches,
    ) -> None:
        """Starts before the first batch.

        Args:
            trainer: The trainer.
            module: What it trains.
            session: This rank's session.
            faults: Faults planned for this rank; None if there are none.
            batches: Remembers which batches each step was made of.
        """
        self.session = session
        self.recorder: Recorder = session.recorder
        self.gradients = GradientWatch(
            session.contract.gradients,
            has_reflex=leaves_out(session.contract),
            tell=self._tell,
        )
        self.losses = LossReader(session.recorder, self.gradients.heard)
        self._engine: EngineUpdates | None = None
        self.are_gradients_whole = self._has_scaler = False
        self._memory = DeviceMemory(session.recorder)
        self.replicas = ReplicaWatch(session, self._copies)
        self.replay: StepReplay | None = None
        """Runs some micro-batches twice; None if none is."""
        self.step = trainer.global_step - 1
        self.next_save_step = math.inf
        """Step at whose end a checkpoint of our own is due."""
        self._end_step_of = batches.end_step
        self._batch: Any = None
        self._num_batches = 0
        self._drawn: Any = None
        self._trainer = trainer
        self._module = module
        self._model: Any = None
        self._is_automatic = True
        self._flags = 0
        self._bad_batch: int | None = None
        self._num_steps = 0
        self._is_synced = False
        self._resume_phase, self._is_between_epochs = int(Phase.SETUP), False
        self._own_work_end: OwnWorkEnd | None = None
        self._metrics: StepMetrics | None = None
        self.figures: Callable[[], Mapping[str, float]] | None = None
        """Gives the service-level figures to log; None to log none."""
        self._faults = None if faults is None else FaultPoints(faults, trainer, module)
        # A user may have replaced the method by a function of his own.
        self._own_save = vars(trainer).get("save_checkpoint")
        self._host_save = trainer.save_checkpoint
        self._wrap(trainer)

    def _wrap(self, host: Any) -> None:
        """Puts itself around what the host does outside of its hooks."""
        host.save_checkpoint = self._save_checkpoint
        missing = _compat.missing_names(host)
        if missing:
            self.session.note(
                f"This Lightning lacks {', '.join(missing)}: data waits are not measured and a "
                "stop leaves fit() by an exception."
            )
            return
        _compat.watch_fetches(host, self._before_fetch, self._after_fetch)

    def start_training(self) -> None:
        """The first batch comes next, or the first after a rollback."""
        self.step = self._trainer.global_step - 1
        self._drawn = _compat.batches_drawn(self._trainer)
        self._num_batches = self._drawn.ready
        self._end_step_of((self.step, self._num_batches))
        self.losses = LossReader(self.recorder, self.gradients.heard)
        self.are_gradients_whole = _compat.are_gradients_whole(self._trainer)
        self._watch_engine()
        self._has_scaler = _compat.has_scaler(self._trainer)
        self.replicas.begin(self.step)
        self._flags, self._bad_batch = 0, None
        self._model = self._trainer.strategy.model
        self._is_automatic = self._module.automatic_optimization
        self._resume_phase, self._is_between_epochs = _BETWEEN, False
        self.recorder.starts_at(self.step + 1)
        self.recorder.enter(_BETWEEN)
        self.recorder.forget_times()
        self._metrics = StepMetrics(self._trainer, self.recorder, self.figures)
        if self._trainer.world_size > 1 and self._own_work_end is None:
            self._own_work_end = OwnWorkEnd(self._module, self.recorder.own_work_ends)

    def begin_batch(self, batch: Any) -> None:
        """The batch is there."""
        self._batch = batch
        self._num_batches = self._drawn.ready
        self.recorder.count_batch()
        self.recorder.enter(_FORWARD)
        if self.replay is not None:
            self.replay.expect(self.step + 1)

    def begin_backward(self, loss: Tensor) -> None:
        """Enters the backward; looks for what is not finite while it can be told apart."""
        if loss.device.type == "cpu":
            # No device scales this loss, so it is the one the step reports.
            value = loss.item()
            self.losses.add(value)
            if not math.isfinite(value):
                self._flags |= non_finite_flags(self._batch, self._module.parameters())
                if self._bad_batch is None:
                    self._bad_batch = self._num_batches - 1
        elif not self._is_automatic:
            self.losses.add(loss.detach())
        self._is_synced = self._own_work_end is not None and getattr(
            self._model, "require_backward_grad_sync", True
        )
        if self._is_synced:
            self.recorder.enter_synced_backward()
        else:
            self.recorder.enter(_BACKWARD)
        if self.replay is not None:
            self.replay.begin_backward()
        if self._faults is not None:
            self._faults.at("backward")
        if self.replicas.waiting:
            self.replicas.begin_backward()

    def end_backward(self) -> None:
        """Leaves the backward."""
        self.replicas.end_backward()
        if self._is_synced:
            self.recorder.leave_synced_backward(_OPTIMIZER)
            assert self._own_work_end is not None
            if not self._own_work_end.is_settled and self._num_steps >= 1:
                self._own_work_end.settle()
        else:
            self.recorder.enter(_OPTIMIZER)
        if self.replay is not None:
            self.replay = self.replay.end_backward()
        if self._faults is not None:
            self._faults.before_optimizer()

    def before_update(self, optimizer: Any) -> None:
        """The gradients are reduced and unscaled; clipping and the update come next."""
        if self._engine is None:
            self.gradients.before_update(
                optimizer, are_whole=self.are_gradients_whole, is_scaled=self._has_scaler
            )

    def end_batch(self, outputs: Any) -> Action | None:
        """Leaves the batch; at an optimizer step also writes it down and asks what to do."""
        self._batch = None
        self.recorder.enter(_BETWEEN)
        if self._is_automatic:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if isinstance(loss, Tensor) and loss.device.type != "cpu":
                self.losses.add(loss.detach())
        step = self._trainer.global_step - 1
        if step == self.step:
            return None
        self.step = step
        flags, bad_batch = self._flags, self._bad_batch
        self._flags, self._bad_batch = 0, None
        if self._num_steps < WARMUP_STEPS:
            flags |= layout.IS_WARMUP
        self._num_steps += 1
        self._end_step_of((step, self._num_batches))
        scale = self._trainer.accumulate_grad_batches if self._is_automatic else 1
        batch = self._num_batches - 1 if bad_batch is None else bad_batch
        self._memory.read(step)
        if self._engine is not None and (made := self._engine.look()) is not None:
            self.gradients.hear_of(made)
        gradient = self.gradients.take()
        if self._has_scaler:
            gradient = gradient._replace(is_scaled=True)
        self.losses.end_step(step, scale=scale, batch=batch, flags=flags, gradient=gradient)
        if step >= self.replicas.due_step:
            self.replicas.look(step)
        assert self._metrics is not None, "training has started"
        self._metrics.end_step()
        if self._faults is not None:
            self._faults.at("step_end")
        return self.session.at_boundary(step)

    def resume_steps(self) -> None:
        """An evaluation or a save is over; it is no part of a step."""
        self.recorder.enter(self._resume_phase)
        self.recorder.forget_times(was_evaluation=not self._is_between_epochs)

    def end_epoch(self) -> None:
        """The epoch's last batch is done. What the hooks that follow do nobody knows, so until
        the next epoch asks for a batch they have the limits of an evaluation."""
        self.recorder.count_epoch()
        self._resume_phase, self._is_between_epochs = _EVALUATION, True
        self.recorder.enter(_EVALUATION)

    def close(self) -> None:
        """Gives the host back what was wrapped."""
        self.replicas.forget()
        if self.replay is not None:
            self.replay.drop()
        self.gradients.close()
        self._forget_engine()
        host: Any = self._trainer
        if self._own_save is not None:
            host.save_checkpoint = self._own_save
        else:
            vars(host).pop("save_checkpoint", None)
        _compat.reset_driver(self._trainer)
        if self._own_work_end is not None:
            self._own_work_end.remove()
        if self._faults is not None:
            self._faults.remove()

    def _watch_engine(self) -> None:
        self._forget_engine()
        if _compat.is_engine(self._trainer):
            has_reflex = leaves_out(self.session.contract)
            engine = self._trainer.strategy.model
            self._engine = EngineUpdates(engine, self.gradients, has_reflex=has_reflex)

    def _forget_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _tell(self, message: str) -> None:
        if self.session.rank == 0:
            self.session.note(message, step=self.step)

    def _copies(self) -> Found:
        return find_copies([self._model], self._trainer.optimizers)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.recorder.enter(int(Phase.CHECKPOINT))
        try:
            self._host_save(*args, **kwargs)
        finally:
            self.resume_steps()

    def _before_fetch(self) -> None:
        self.recorder.enter(_DATA)
        if self._is_between_epochs:
            self._resume_phase, self._is_between_epochs = _BETWEEN, False
            self.recorder.forget_times(was_evaluation=False)
        if self._faults is not None:
            self._faults.at("data")

    def _after_fetch(self) -> None:
        self.recorder.enter(_BETWEEN)
