"""The one callback that puts a Lightning training under the contract."""

import logging
import math
import os
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from sla_lightning.actions import StopRequested
from sla_lightning.telemetry import FitWatch
from slav1.contract import Contract
from slav1.decision import Action
from slav1.phase import Phase
from slav1.session import RunSettings, Session, join
from slav1.session.rendezvous import job_rendezvous
from slav1.session.settings_source import resolve
from slav1.testing import planned_faults

STATE_VERSION = 1
"""Version of what the callback keeps in a checkpoint."""

_EVALUATION = int(Phase.EVALUATION)

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
        """Step at whose end the contract stopped the last ``fit``; None if it did not.
        Where Lightning itself spawns the ranks, only they know; the ledger does in any case."""
        self.run_folder: Path | None = None
        """Folder of the last run."""
        self._run: FitWatch | None = None
        self._loaded: Any = None
        self._final: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Joins the run, on all ranks."""
        if stage != "fit":
            return
        if any(isinstance(c, SLACallback) and c is not self for c in trainer.callbacks):  # type: ignore[attr-defined]
            raise ValueError(
                "callbacks holds two SLACallbacks; one watches everything. Remove one."
            )
        self.stopped_at, self._loaded, self._final = None, None, {}
        settings = resolve(self._contract, self._run_dir, os.environ)
        faults = planned_faults(trainer.global_rank, trainer.world_size)
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
        self._run = FitWatch(trainer, pl_module, session, faults)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compares the ranks' data and goes on from saved memories."""
        run = self._running()
        num_batches = trainer.num_training_batches
        run.session.compare(num_batches=int(num_batches) if math.isfinite(num_batches) else None)
        if trainer.is_global_zero:
            self._go_on(trainer, run.session)
        run.start_training()

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
        # For whoever saves after the fit.
        self._final = self._memories()
        self._running().recorder.enter(int(Phase.TEARDOWN))

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
        return self._final if self._run is None else self._memories()

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

    def _memories(self) -> dict[str, Any]:
        run = self._running()
        # On every rank: rank 0 waits for the last samples of all.
        run.losses.drain()
        if run.session.rank != 0:
            return {}
        last_step = run.step if run.recorder.num_records else None
        memories = run.session.ask_state(last_step)
        return {} if memories is None else {"version": STATE_VERSION, "detectors": memories}

    def _go_on(self, trainer: Trainer, session: Session) -> None:
        if self._loaded is not None:
            session.restore(self._loaded)
        elif trainer.ckpt_path is not None:
            session.note(
                f"Training goes on from {trainer.ckpt_path}, which holds no SLA state of this "
                "version: the detectors start with empty windows."
            )

    def _running(self) -> FitWatch:
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
