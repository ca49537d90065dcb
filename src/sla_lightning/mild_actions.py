"""Carrying out, in Lightning, what neither stops training nor takes it back."""

from time import monotonic
from typing import Any

from lightning.pytorch import Trainer

from sla_lightning import _compat
from sla_lightning.checkpoint_guard import CheckpointGuard
from sla_lightning.rollback import Rollback
from sla_lightning.telemetry import FitWatch
from slav1.checkpoint import PeersMissingError
from slav1.checkpoint.shelf import SNAPSHOT_FOLDER
from slav1.decision import Action

MEETING_LIMIT_S = 10.0
"""How long ranks wait for each other to agree on a norm, in seconds."""


class MildActions:
    """Snapshot, clip and decay, skip batches: at the end of the same step on all ranks."""

    def __init__(
        self, trainer: Trainer, watch: FitWatch, guard: CheckpointGuard, rollback: Rollback
    ) -> None:
        """Starts with nothing done.

        Args:
            trainer: The trainer.
            watch: Knows step and gradients.
            guard: What the trainer saves through.
            rollback: Knows which batches each step was made of.
        """
        self._trainer = trainer
        self._watch = watch
        self._session = watch.session
        self._guard = guard
        self._rollback = rollback
        self._num_snapshots = 0

    def __call__(self, action: Action) -> None:
        """Collective. Carries out what was handed out at the end of a step."""
        if action is Action.SNAPSHOT:
            self._snapshot()
        elif action is Action.CLIP_AND_DECAY:
            self._restrain()
        elif action is Action.SKIP_BATCHES:
            self._leave_out()

    def _snapshot(self) -> None:
        most = self._session.contract.checkpoint.max_snapshots
        if self._num_snapshots >= most:
            self._tell(f"No snapshot: this start has written {most} (checkpoint.max_snapshots).")
            return
        self._num_snapshots += 1
        step = self._watch.step
        path = self._session.run_folder / SNAPSHOT_FOLDER / f"step-{step}"
        start_s = monotonic()
        self._guard.is_doubtful = True
        try:
            self._trainer.save_checkpoint(path)
        finally:
            self._guard.is_doubtful = False
        blocked_s = round(monotonic() - start_s, 6)
        how = "written in parts while training waited"
        if not _compat.is_sharded(self._trainer):
            how = "copied, and is written while training goes on"
        self._tell(
            f"A snapshot of the state after step {step} was {how}: {path}. Training stood still "
            f"for {blocked_s * 1000:.0f} ms.",
            path=str(path),
            blocked_s=blocked_s,
        )

    def _restrain(self) -> None:
        gradients = self._watch.gradients
        usual = gradients.usual_norm if self._watch.are_gradients_whole else 0.0
        try:
            # Rank 0's on all ranks: a last bit that differs would drive replicas apart.
            met = self._session.peers.gather("usual norm", usual, limit_s=MEETING_LIMIT_S)
            usual = met[0]
        except PeersMissingError as error:
            self._tell(f"Nothing is clipped, because the ranks could not agree: {error}")
            usual = 0.0
        said = gradients.restrain(usual, self._trainer.optimizers)
        self._tell(said, max_norm=usual)

    def _leave_out(self) -> None:
        decision = self._session.decision()
        assert decision is not None, "an action has been handed out"
        if decision.onset_step is None or _compat.missing_for_rollback(self._trainer):
            self._tell("The batches are not known by number, so none can be left out.")
            return
        numbers = self._rollback.leave_out(decision, decision.onset_step)
        if numbers:
            first, last = numbers[0], numbers[-1]
            self._tell(
                f"Batches {first} to {last} are left out wherever training comes to them again.",
                first_skipped_batch=first,
                last_skipped_batch=last,
            )

    def _tell(self, message: str, **evidence: Any) -> None:
        if self._session.rank == 0:
            self._session.peers.record("notice", message, step=self._watch.step, **evidence)
