"""The one callback that puts a Lightning training under the contract."""

import math
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from sla_lightning.actions import RollbackRequested, StopRequested
from sla_lightning.telemetry import FitWatch
from sla_lightning.watched_fit import WatchedFit
from slav1.contract import Contract
from slav1.decision import Action
from slav1.phase import Phase

_EVALUATION = int(Phase.EVALUATION)


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
        log_figures: bool = False,  # noqa: FBT002 - a setting of YAML files too
    ) -> None:
        """Stores the settings; nothing is started before ``fit``.

        Args:
            contract: ``L1``, ``L2``, ``L3``, the path of a contract file, or a
                ``Contract``. Default: ``SLA_CONTRACT``, else ``L1``.
            run_dir: Folder in which each run gets a folder of its own. Default:
                ``SLA_RUN_DIR``, else ``sla_runs``.
            log_figures: Whether the trainer's loggers also get the service-level figures of
                :class:`slav1.metrics.RankFigures`, as often as they get the times of steps.
        """
        self._contract = contract
        self._run_dir = run_dir
        self._log_figures = log_figures
        self.stopped_at: int | None = None
        """Step at whose end the contract stopped the last ``fit``; None if it did not.
        Where Lightning itself spawns the ranks, only they know; the ledger does in any case."""
        self.run_folder: Path | None = None
        """Folder of the last run."""
        self._fit: WatchedFit | None = None
        self._run: FitWatch | None = None
        self._final: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Joins the run, on all ranks."""
        if stage != "fit":
            return
        if any(isinstance(c, SLACallback) and c is not self for c in trainer.callbacks):  # type: ignore[attr-defined]
            raise ValueError(
                "callbacks holds two SLACallbacks; one watches everything. Remove one."
            )
        self.stopped_at, self._final = None, {}
        # A new list: the host is iterating over the old one. First, so that a stop comes
        # before whatever another callback would do with a state in breach.
        host: Any = trainer
        host.callbacks = [self, *(c for c in host.callbacks if c is not self)]
        self._fit = WatchedFit(trainer, pl_module, self._contract, self._run_dir)
        self._run = self._fit.watch
        if self._log_figures:
            from slav1.metrics import RankFigures

            self._run.figures = RankFigures(self._run.recorder).read
        self.run_folder = self._fit.session.run_folder

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compares the ranks' data and goes on from saved memories."""
        self.stopped_at = None
        num_batches = trainer.num_training_batches
        self._watched().begin(int(num_batches) if math.isfinite(num_batches) else None)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The batch is there: the forward begins."""
        run = self._running()
        run.begin_batch(batch)

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """The loss is there: the backward begins."""
        self._running().begin_backward(loss)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The gradients are there, those of the other ranks included."""
        self._running().end_backward()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """The gradients are reduced and not clipped yet."""
        self._running().before_update(optimizer)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """The step ends here if the optimizer has made one."""
        run = self._running()
        action = run.end_batch(outputs)
        if action is not None:
            self._carry_out(action)
        elif run.step >= run.next_save_step:
            self._watched().save_own()

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

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts the epoch; tells what random numbers its workers have begun with."""
        self._running().end_epoch()
        self._watched().tell_workers()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """No step comes any more."""
        self._watched().tell_workers()
        # For whoever saves after the fit.
        self._final = self._watched().state()
        self._running().recorder.enter(int(Phase.TEARDOWN))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves the run in good order."""
        self._leave("finished")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Publishes what went wrong before anything is torn down."""
        if self._fit is not None:
            self._fit.fail(exception, self._leave)

    def state_dict(self) -> dict[str, Any]:
        """Collective while training runs. The detectors' memories and the random states of
        all ranks, as plain values; from rank 0, where they are saved."""
        return self._final if self._fit is None else self._fit.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps what was saved for the start of training."""
        if self._fit is not None:
            self._fit.load(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        """Settings only: sockets and shared memory stay in their process."""
        return {**vars(self), "_run": None, "_fit": None}

    def _watched(self) -> WatchedFit:
        assert self._fit is not None, "training hooks come after setup('fit')"
        return self._fit

    def _running(self) -> FitWatch:
        assert self._run is not None, "training hooks come after setup('fit')"
        return self._run

    def _carry_out(self, action: Action) -> None:
        run = self._running()
        # What is still on its way from a device belongs to the steps made so far.
        run.losses.drain()
        # Other tensors may take the place of those that are looked at.
        run.replicas.forget()
        run.session.confirm(run.step)
        if action < Action.ROLLBACK:
            self._watched().mild(action)
            return
        # Stands unless training goes on from a checkpoint.
        self.stopped_at = run.step
        if action is Action.ROLLBACK:
            raise RollbackRequested
        raise StopRequested(action.name)

    def _leave(self, reason: str) -> None:
        fit, self._fit, self._run = self._fit, None, None
        if fit is not None:
            fit.leave(reason)
