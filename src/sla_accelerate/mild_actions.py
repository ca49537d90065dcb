"""Carrying out, in Accelerate, what neither stops training nor takes it back."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from sla_accelerate._batches.position import Positions
from sla_accelerate._saved.saver import Saver
from sla_accelerate.telemetry import LoopWatch
from slav1.checkpoint import PeersMissingError, Shelf
from slav1.checkpoint.errors import CheckpointError
from slav1.checkpoint.shelf import SNAPSHOT_FOLDER
from slav1.checkpoint.snapshot import SnapshotBuffers
from slav1.decision import Action
from slav1.phase import Phase

MEETING_LIMIT_S = 10.0
"""How long ranks wait for each other to agree on a norm, in seconds."""

LAST_SNAPSHOT_LIMIT_S = 60.0
"""How long the end of a run waits for a snapshot that is still being written, in seconds."""


class MildActions:
    """Snapshot, clip and decay, skip batches: at the end of the same step on all ranks."""

    def __init__(
        self, saver: Saver, positions: Positions, find_shelf: Callable[[LoopWatch], Shelf]
    ) -> None:
        """Starts with nothing done.

        Args:
            saver: Knows what there is to write.
            positions: Where the loaders are.
            find_shelf: Finds the run's line of checkpoints.
        """
        self._saver = saver
        self._positions = positions
        self._find_shelf = find_shelf
        self._buffers = SnapshotBuffers()
        self._of: LoopWatch | None = None
        self._num_snapshots = 0

    def __call__(self, watch: LoopWatch, action: Action) -> None:
        """Collective. Carries out what was handed out at the end of a step."""
        if watch is not self._of:
            self._of, self._num_snapshots = watch, 0
        if action is Action.SNAPSHOT:
            self._snapshot(watch)
        elif action is Action.CLIP_AND_DECAY:
            self._restrain(watch)
        elif action is Action.SKIP_BATCHES:
            self._leave_out(watch)

    def _snapshot(self, watch: LoopWatch) -> None:
        most = watch.session.contract.checkpoint.max_snapshots
        if self._num_snapshots >= most:
            _tell(watch, f"No snapshot: this start has written {most} (checkpoint.max_snapshots).")
            return
        self._num_snapshots += 1
        start_s = monotonic()
        shelf = self._find_shelf(watch)
        path = watch.session.run_folder / SNAPSHOT_FOLDER / f"step-{watch.step}"
        with watch.aside(Phase.CHECKPOINT):
            content, facts = self._saver.snapshot(watch, self._buffers)
            rank = watch.session.rank
            try:
                shelf.save_in_background(path, lambda folder: _write(folder, rank, content), facts)
            except CheckpointError as error:
                _tell(watch, f"No snapshot: {error}")
                return
        watch.orders.finish = lambda: _drain(watch, shelf)
        blocked_s = round(monotonic() - start_s, 6)
        _tell(
            watch,
            f"A snapshot of the state after step {watch.step} was copied, and is written while "
            f"training goes on: {path}. Training stood still for {blocked_s * 1000:.0f} ms.",
            path=str(path),
            blocked_s=blocked_s,
        )

    def _restrain(self, watch: LoopWatch) -> None:
        gradients = watch.gradients
        usual = gradients.watch.usual_norm if gradients.are_whole else 0.0
        try:
            # Rank 0's on all ranks: a last bit that differs would drive replicas apart.
            met = watch.session.peers.gather("usual norm", usual, limit_s=MEETING_LIMIT_S)
            usual = met[0]
        except PeersMissingError as error:
            _tell(watch, f"Nothing is clipped, because the ranks could not agree: {error}")
            usual = 0.0
        said = gradients.watch.restrain(usual, watch.prepared.optimizers())
        _tell(watch, said, max_norm=usual)

    def _leave_out(self, watch: LoopWatch) -> None:
        decision = watch.session.decision()
        assert decision is not None, "an action has been handed out"
        onset, alarm = decision.onset_step, decision.alarm_step
        skips = [] if onset is None or alarm is None else self._positions.batches_of(onset, alarm)
        if not any(skips):
            _tell(watch, "The batches are not known by number, so none can be left out.")
            return
        self._positions.leave_out(skips)
        _tell(
            watch,
            f"The batches of steps {onset} to {alarm} are left out wherever training comes to "
            "them again.",
        )


def _write(folder: Path, rank: int, content: Any) -> None:
    if content is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(content, folder / f"rank-{rank}.pt")


def _drain(watch: LoopWatch, shelf: Shelf) -> None:
    try:
        shelf.drain(LAST_SNAPSHOT_LIMIT_S)
    except CheckpointError as error:
        _tell(watch, str(error))


def _tell(watch: LoopWatch, message: str, **evidence: Any) -> None:
    if watch.session.rank == 0:
        watch.session.peers.record("notice", message, step=watch.step, **evidence)
