"""Writes the state of an accelerator into a folder: the host's files and ours."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sla_accelerate._batches import position as _position
from sla_accelerate._batches.position import Positions
from sla_accelerate._saved import side_file
from sla_accelerate._saved.state import HeldState
from sla_accelerate.telemetry import LoopWatch
from slav1.checkpoint import SaveFacts
from slav1.checkpoint.snapshot import SnapshotBuffers, snapshot


class Saver:
    """Writes with the host's ``save_state``."""

    def __init__(
        self,
        accelerator: Any,
        *,
        save: Callable[..., Any],
        held: Callable[[], HeldState],
        positions: Positions,
        host: str = "accelerate",
    ) -> None:
        """Starts with nothing.

        Args:
            accelerator: The accelerator.
            save: The host's ``save_state``, bound to it.
            held: Returns what it would save now.
            positions: Where its loaders are.
            host: Who saves, for manifests.
        """
        self._host = host
        self._accelerator = accelerator
        self._project = accelerator.project_configuration
        self._save = save
        self._held = held
        self._positions = positions

    def facts(self, watch: LoopWatch) -> SaveFacts:
        """What the line of checkpoints has to know of the state as it is."""
        return self._held().facts(
            step=watch.step,
            host=self._host,
            is_healthy=watch.is_healthy,
            with_content=watch.session.contract.checkpoint.verify == "content",
        )

    def snapshot(self, watch: LoopWatch, buffers: SnapshotBuffers) -> tuple[Any, SaveFacts]:
        """A copy in memory of what this rank has to write of a doubtful state."""
        held, step = self._held(), max(0, watch.step)
        facts = SaveFacts(
            step=step,
            host=self._host,
            kind="replicated" if held.is_replicated else "sharded",
            is_healthy=False,
        )
        if held.is_replicated and self._accelerator.process_index != 0:
            return None, facts
        schedulers = [one.state_dict() for one in self._accelerator._schedulers]  # noqa: SLF001 - what the host saves
        content = {"step": step, "schedulers": schedulers, **held.content()}
        return snapshot(content, buffers), facts

    def writer(
        self, watch: LoopWatch, args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> Callable[[Path], None]:
        """What writes everything, on this rank; the host's arguments come along."""
        rank = self._accelerator.process_index
        detectors = watch.session.ask_state(watch.step) if rank == 0 else None
        gradients = watch.gradients.watch.state()
        saved = side_file.Saved(watch.step, detectors, gradients)
        position = self._positions.to_plain(world_size=self._accelerator.num_processes)

        def write(folder: Path) -> None:
            self.write(folder, args, options)
            if rank == 0:
                side_file.write(folder, saved)
            _position.write(folder, rank, position)

        return write

    def write(self, folder: Path, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Writes the host's files."""
        naming = self._project.automatic_checkpoint_naming
        self._project.automatic_checkpoint_naming = False
        try:
            self._save(str(folder), *args, **options)
        finally:
            self._project.automatic_checkpoint_naming = naming
