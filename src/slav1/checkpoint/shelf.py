"""The checkpoints of one run: saved, kept, checked and chosen by all of its ranks."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slav1.checkpoint._background import Background
from slav1.checkpoint._catalogue import Catalogue
from slav1.checkpoint._check import check_together
from slav1.checkpoint._choose import choose, reject
from slav1.checkpoint._disk import Disk
from slav1.checkpoint._keep import Keep
from slav1.checkpoint._line import Choice, Commit, Line
from slav1.checkpoint._meeting import StageError
from slav1.checkpoint._names import Writer, place_of
from slav1.checkpoint._save import Save
from slav1.checkpoint._seal import READS_BACK_DIFFERENTLY
from slav1.checkpoint._sweep import sweep_once
from slav1.checkpoint.errors import CheckpointError, SaveFailedError
from slav1.checkpoint.facts import SaveFacts
from slav1.checkpoint.manifest import Manifest
from slav1.checkpoint.peers import Peers
from slav1.checkpoint.throttle import Throttle, Way
from slav1.contract.settings import CheckpointSettings

CATALOGUE = "checkpoints.jsonl"
"""Name of the catalogue in the run directory."""

OWN_FOLDER = "checkpoints"
"""Folder in the run folder whose checkpoints are counted and removed here, not by a host."""

SNAPSHOT_FOLDER = "snapshots"
"""Folder in the run folder for states that are doubtful: for people, never to go on from."""


def run_identity(environment: Mapping[str, str], script: str) -> str:
    """What the checkpoints of one job have in common over all its starts.

    Args:
        environment: Environment variables; ``SLA_RUN_ID`` wins.
        script: Path of the script that is run.
    """
    if given := environment.get("SLA_RUN_ID"):
        return given
    return os.path.realpath(script or ".")


class Shelf:
    """The checkpoints of one run, seen from one rank.

    Args:
        settings: The contract's settings for checkpoints.
        peers: The other ranks.
        run_folder: Folder of this start of the run; the catalogue lies beside it.
        attempt: Number of this start, from 0.
        roots: Folders where checkpoints of the run may lie beside those in the catalogue.
        run: Identity of the run over all its starts; None takes :func:`run_identity`.
        disk: Where it all lies.
    """

    def __init__(
        self,
        *,
        settings: CheckpointSettings,
        peers: Peers,
        run_folder: Path,
        attempt: int,
        roots: Sequence[Path] = (),
        run: str | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._throttle = Throttle(lambda: peers.io_percent, self._tell_throttled)
        disk = disk or Disk(self._throttle.fsync)
        run = run if run is not None else run_identity(os.environ, sys.argv[0])
        self._line = Line(
            settings=settings,
            peers=peers,
            disk=disk,
            run=run,
            training=run_folder.name,
            attempt=attempt,
            writer=Writer.of_this_process(run),
            catalogue=Catalogue(run_folder.absolute().parent / CATALOGUE, run, disk),
            own_folder=Path(os.path.realpath(run_folder / OWN_FOLDER)),
        )
        self._keep = Keep(self._line, roots)
        self._background = Background()
        self.num_failed_in_row = 0
        """Steps whose saves failed since the last save that did not."""
        self._failed_step: int | None = None

    # -- save ---------------------------------------------------------------------------------

    def save(self, path: Path, write: Callable[[Path], None], facts: SaveFacts) -> Commit:
        """Collective. Saves, proves and commits a checkpoint; on all ranks or on none.

        Args:
            path: Where the checkpoint shall lie; what is there stays until its successor is
                committed.
            write: Called on every rank with a path beside ``path``; writes the state there,
                as a file or a folder. May do nothing on ranks that write no part.
            facts: What is saved.

        Raises:
            SaveFailedError: On all ranks, if it did not become a checkpoint.
            CheckpointError: If a save in the background does not end.
        """
        self._wait_for_the_one_before()
        return self._save(path, write, facts, self._line.number("save"))

    def save_in_background(
        self, path: Path, write: Callable[[Path], None], facts: SaveFacts
    ) -> None:
        """Collective. The same in a thread, while training goes on.

        One save runs at a time: another one, of either kind, waits for it. What goes wrong
        comes out of :meth:`poll`.

        Args:
            path: Where the checkpoint shall lie.
            write: As for :meth:`save`; works on a copy, never on what training changes.
            facts: What is saved; its tensors are copies too, see
                :func:`slav1.checkpoint.snapshot.snapshot`.
        """
        self._wait_for_the_one_before()
        number = self._line.number("save")
        self._background.start(
            lambda: self._save_beside_training(path, write, facts, number), path=path, facts=facts
        )

    @property
    def is_saving(self) -> bool:
        """Whether a save runs in the background."""
        return self._background.is_running

    def poll(self) -> None:
        """Says what became of saves in the background; called at step boundaries.

        Raises:
            SaveFailedError: If one failed since the last call.
        """
        self._background.raise_error()

    def drain(self, limit_s: float) -> None:
        """Waits for the save in the background, at the end of a run.

        Args:
            limit_s: How long, in seconds.

        Raises:
            SaveFailedError: If it failed.
            CheckpointError: If it did not end in time; it never becomes a checkpoint then,
                unless it still ends by itself.
        """
        if not self._background.wait(limit_s):
            raise CheckpointError(
                f"The save in the background did not end within {limit_s:g} s and is given up; "
                "the last good checkpoint stays in place."
            )
        self.poll()

    # -- check and choose ---------------------------------------------------------------------

    def check(self, path: Path) -> Manifest | None:
        """Collective. Verifies all of a checkpoint, before anything of it is loaded.

        Returns:
            None if nothing is written about it: not saved by us, so not verified.

        Raises:
            CheckpointDamagedError: On all ranks, if it is not what was committed.
            CheckpointError: On all ranks, if one of them can't read it.
        """
        path = Path(os.path.realpath(path))
        topic = f"checkpoint check {self._line.number('check')}"
        try:
            manifest, problems = check_together(self._line, path, topic)
        except StageError as error:
            raise CheckpointError(f"{path} can't be read by every rank: {error}") from error
        if problems:
            raise problems[0].as_error(path)
        if manifest is not None:
            self._line.proved.add(manifest.seal)
            if manifest.run == self._line.run:
                self._line.loaded_sequence = manifest.sequence
        return manifest

    def choose(self, *, before_step: int | None = None, of_this_run: bool = False) -> Choice | None:
        """Collective. The newest healthy checkpoint of this run that verifies, to load it.

        A damaged one is recorded and set aside under another name, never deleted. One that
        was resumed from ``max_attempts`` times without getting past it is passed over.

        Args:
            before_step: Only checkpoints of earlier steps than this, and only such as this
                training has saved or come from: for a rollback.
            of_this_run: Only checkpoints of this run folder, and not what the same script
                left at another time: for a start that nobody has asked to go on.

        Returns:
            The same on all ranks; None if there never was a checkpoint that is not removed.

        Raises:
            NoGoodCheckpointError: If there are some and none can be used.
            CheckpointError: On all ranks, if rank 0 can't look for them.
        """
        self._wait_for_the_one_before()
        try:
            return choose(
                self._line,
                self._keep.folders(),
                before_step=before_step,
                training=self._line.training if of_this_run else None,
            )
        except StageError as error:
            raise CheckpointError(f"Checkpoints can't be looked for: {error}") from error

    def resumed(self, choice: Choice) -> None:
        """Counts that the run goes on from a checkpoint. Every rank calls it."""
        if self._line.is_leader:
            self._tell("resumed", choice)
            self._line.peers.record(
                "restored",
                f"Training goes on from {choice.path}, after step {choice.step}.",
                step=choice.step,
                path=str(choice.path),
            )
        with self._line.lock:
            self._line.known[choice.path] = choice.manifest

    def interrupted(self, choice: Choice) -> None:
        """Takes back that a resume was counted: people have broken it off. Every rank calls it."""
        if self._line.is_leader:
            self._tell("interrupted", choice)

    def rolled_back(self, choice: Choice) -> None:
        """Counts a rollback, and sets newer checkpoints aside. Every rank calls it."""
        if self._line.is_leader:
            self._tell("rolled_back", choice)
        self._keep.scan()
        for path, manifest in self._line.newest_first():
            if path.parent.name == SNAPSHOT_FOLDER and not manifest.is_healthy:
                continue
            if manifest.sequence > choice.manifest.sequence and path != choice.path:
                reason = f"the run was rolled back to step {choice.step}, before it."
                reject(self._line, path, reason, manifest)

    # -- keep ---------------------------------------------------------------------------------

    @property
    def last_good(self) -> Choice | None:
        """The newest healthy checkpoint, as far as this rank knows without reading it."""
        return self._keep.last_good()

    def is_last_good(self, path: Path) -> bool:
        """Whether :attr:`last_good` lies at a path, however that is written."""
        last_good = self.last_good
        return last_good is not None and last_good.path == place_of(path)

    def may_remove(self, path: Path, *, is_guarded: bool = False) -> bool:
        """Whether a host may remove a checkpoint now, by its own rotation.

        One that may not go yet is remembered, and removed here as soon as it may.

        Args:
            path: The checkpoint.
            is_guarded: Whether one that this run does not know may go only when enough of its
                own are good. It is not remembered.

        Returns:
            False for the last good one and, unless ``keep`` is 1, the good one before it.
        """
        return self._keep.may_remove(place_of(path), is_guarded=is_guarded)

    def removed(self, path: Path) -> None:
        """Tells that the host has removed a checkpoint. Every rank calls it."""
        self._keep.forget(place_of(path))

    def prune(self, folder: Path, *, keep: int | None = None) -> list[Path]:
        """Removes older checkpoints of a folder. Every rank calls it; the leader acts.

        Only verified, healthy checkpoints count as kept; the newest two of those never go.

        Args:
            folder: Only checkpoints directly in it.
            keep: How many to keep; None takes the contract's.

        Returns:
            What was removed; always empty on ranks that don't act.
        """
        if not self._line.is_leader:
            return []
        wanted = keep if keep is not None else self._line.settings.keep
        return self._keep.prune(Path(os.path.realpath(folder)), wanted)

    # -- inside -------------------------------------------------------------------------------

    def _save(
        self, path: Path, write: Callable[[Path], None], facts: SaveFacts, number: int
    ) -> Commit:
        """Saves; once more at once if the disk gave back something else, which may have been
        one bad block. Not where hosts take the state apart while they write it."""
        try:
            return self._save_once(path, write, facts, number)
        except SaveFailedError as error:
            if facts.kind != "replicated" or not _is_corrupt(error):
                raise
        return self._save_once(path, write, facts, number)

    def _save_once(
        self, path: Path, write: Callable[[Path], None], facts: SaveFacts, number: int
    ) -> Commit:
        self._keep.scan()
        sweep_once(self._line, place_of(path).parent)
        try:
            commit = Save(self._line, path, write, facts, number).run()
        except SaveFailedError as error:
            if facts.step != self._failed_step:
                # A host may save the same state under several names.
                self._failed_step = facts.step
                self.num_failed_in_row += 1
            self._tell_failed(error)
            raise
        self.num_failed_in_row, self._failed_step = 0, None
        self._keep.add(commit.path, commit.manifest)
        if self._line.is_leader:
            self._tell_committed(commit)
            self._keep.tidy()
        return commit

    def _save_beside_training(
        self, path: Path, write: Callable[[Path], None], facts: SaveFacts, number: int
    ) -> Commit:
        with self._throttle.in_background(place_of(path).parent):
            return self._save(path, write, facts, number)

    def _wait_for_the_one_before(self) -> None:
        limit_s = self._line.settings.limit_s
        if not self._background.wait(limit_s):
            raise CheckpointError(
                f"The save in the background did not end within {limit_s:g} s (checkpoint.limit_s)."
            )

    def _tell_committed(self, commit: Commit) -> None:
        manifest = commit.manifest
        evidence: dict[str, Any] = {
            "path": str(commit.path),
            "num_bytes": manifest.num_bytes,
            "sequence": manifest.sequence,
            "verify": manifest.verify,
            "is_healthy": manifest.is_healthy,
            **{f"{name}_s": round(seconds, 6) for name, seconds in commit.seconds.items()},
        }
        message = f"{commit.path} (step {commit.step}) is committed."
        if not commit.is_healthy:
            message += f" It is not healthy, so it is never the last good one: {commit.doubt}"
        self._add_line("committed", commit.path, manifest)
        self._line.peers.record("checkpoint_committed", message, step=commit.step, **evidence)

    def _tell_failed(self, error: SaveFailedError) -> None:
        if not self._line.is_leader:
            return
        self._line.peers.record(
            "checkpoint_rejected",
            str(error),
            step=error.step,
            path=str(error.path),
            reason=error.reason,
            ranks=list(error.ranks),
            num_failed_in_row=self.num_failed_in_row,
            is_corrupt=_is_corrupt(error),
        )

    def _tell_throttled(self, way: Way, percent: int) -> None:
        if self._line.is_leader:
            self._line.peers.record(
                "action",
                f"Saves in the background are slowed to {percent} % by {way.means.value}: "
                f"{way.why}.",
                rule="ckpt_success",
                means=way.means.value,
                percent=percent,
            )

    def _tell(self, what: str, choice: Choice) -> None:
        self._add_line(what, choice.path, choice.manifest)

    def _add_line(self, what: str, path: Path, manifest: Manifest) -> None:
        try:
            self._line.catalogue.add(what, path, manifest)
        except OSError as error:
            self._line.peers.record("notice", f"The catalogue could not be written: {error}.")


def _is_corrupt(error: SaveFailedError) -> bool:
    return READS_BACK_DIFFERENTLY in error.reason
