"""Which checkpoint a trainer goes on from, and what else lies in it."""

import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sla_accelerate import _runs
from sla_accelerate._batches import position as _position
from sla_accelerate._saved import side_file
from sla_accelerate._trainer import compat
from sla_accelerate._trainer.count import Begin, begin_of
from sla_accelerate.checkpoint import LAST_GOOD
from slav1.checkpoint import Choice, Shelf
from slav1.checkpoint.formats.examination import NotACheckpointError
from slav1.checkpoint.formats.examine import examine
from slav1.checkpoint.generations import read_generations
from slav1.checkpoint.manifest import Manifest, ManifestError
from slav1.session import Session

_log = logging.getLogger("sla_accelerate")


class Loaded(NamedTuple):
    """What lies in a checkpoint beside the host's files, until it is put to use."""

    path: Path
    """The checkpoint."""

    step: int | None
    """Last step that it contains; None if nobody wrote it down."""

    detectors: Any
    """The detectors' memories; None on ranks other than 0, or if there are none."""

    gradients: Any
    """What is known about gradients."""

    position: dict[str, Any] | None
    """Where this rank was in its data; None if that can't be used."""

    @property
    def begin(self) -> Begin | None:
        """Where training goes on in its data; None if the host has to work that out."""
        return None if self.position is None else begin_of(self.position["loaders"][0])


def read(path: Path, session: Session, *, limit_s: float) -> Loaded:
    """Collective. Reads what the contract has put into a checkpoint."""
    saved = side_file.read(path) if session.rank == 0 else None
    mine = [None, None] if saved is None else [saved.step, saved.gradients]
    step, gradients = session.peers.gather("state of a checkpoint", mine, limit_s=limit_s)[0]
    position = _position.read(path, session.rank)
    is_usable = position is not None and _is_usable(position, session.peers.world_size)
    all_can = session.peers.gather("position of a checkpoint", is_usable, limit_s=limit_s)
    return Loaded(
        path=path,
        step=step,
        detectors=None if saved is None else saved.detectors,
        gradients=gradients,
        position=position if all(all_can) else None,
    )


def _is_usable(position: Mapping[str, Any], world_size: int) -> bool:
    return position["world_size"] == world_size and len(position["loaders"]) == 1


class Resume:
    """Finds the checkpoint that one call of ``train`` begins with."""

    def __init__(self, host: Any, session: Session, shelf: Shelf, *, limit_s: float) -> None:
        """Stores what it works with.

        Args:
            host: The trainer.
            session: This rank's session.
            shelf: The checkpoints of the run.
            limit_s: How long ranks wait for each other, in seconds.
        """
        self._host = host
        self._session = session
        self._shelf = shelf
        self._limit_s = limit_s

    def path(self, asked: Any) -> Path | None:
        """Collective. What to load; verified by all ranks.

        Args:
            asked: The user's ``resume_from_checkpoint``.

        Returns:
            None to begin from the start.

        Raises:
            ValueError: If there is nothing to resume from and the user wants that.
            CheckpointError: On all ranks, if what was named is damaged, or none can be used.
        """
        if asked is True or asked == LAST_GOOD:
            return self._newest(is_needed=asked is True)
        if asked is None or asked is False:
            return self._of_earlier_start()
        return self._named(Path(os.fspath(asked)))

    def _newest(self, *, is_needed: bool) -> Path | None:
        newest = self._shelf.last_good
        choice = self._shelf.choose()
        if choice is not None:
            self._tell_passed(choice, newest)
            return self._take(choice)
        path = self._newest_of_host()
        if path is not None:
            return path
        if is_needed:
            # In the host's own words.
            folder = self._host.args.output_dir
            raise ValueError(f"No valid checkpoint found in output directory ({folder})")
        self._say("This run has no checkpoint yet: it starts from the beginning.")
        return None

    def _of_earlier_start(self) -> Path | None:
        """What to go on from where a launcher has started the run again: its script asks for
        what it asked for at the first start, and would begin all over."""
        if not self._session.attempt or "TORCHELASTIC_RUN_ID" not in os.environ:
            return None
        choice = self._shelf.choose(of_this_run=True)
        if choice is None:
            self._say("This run has no checkpoint to go on from.")
            return None
        return self._take(choice)

    def _named(self, path: Path) -> Path:
        if path.is_dir() and self._shelf.check(path) is None:
            self._say(f"{path} was not saved under the contract: it is loaded, not verified.")
        return path

    def _take(self, choice: Choice) -> Path:
        # Counted first: one that ends the process must not be tried for ever.
        self._shelf.resumed(choice)
        _runs.when_interrupted(partial(self._shelf.interrupted, choice))
        return choice.path

    def _tell_passed(self, choice: Choice, newest: Choice | None) -> None:
        """Says what is lost, and what the host would have taken: the highest number."""
        if self._session.rank:
            return
        if newest is not None and newest.step > choice.step:
            self._say(
                f"Going on from {choice.path} (step {choice.step}): the "
                f"{newest.step - choice.step} steps up to the newest checkpoint are lost."
            )
        highest = next(iter(self._numbered()), None)
        if highest is not None and highest[0] > choice.step + 1:
            self._say(
                f"Going on from {choice.path}. {highest[1]} has a higher number and is not known "
                "to be good; name it in resume_from_checkpoint if you want it all the same."
            )

    def _newest_of_host(self) -> Path | None:
        """Collective. The newest folder of the host's own that is not seen to be damaged."""
        mine = self._look() if self._session.rank == 0 else None
        found = self._session.peers.gather("newest folder", mine, limit_s=self._limit_s)[0]
        return None if found is None else Path(found)

    def _look(self) -> str | None:
        for _, path in self._numbered():
            try:
                damages = examine(path).damages
                manifest = None if damages else _manifest_of(path)
            except (NotACheckpointError, ManifestError) as error:
                self._say(str(error))
                continue
            if damages:
                self._say(f"{path} is passed over: {damages[0].file}: {damages[0].message}.")
            elif manifest is None:
                self._say(f"{path} was not saved under the contract: it looks whole and is loaded.")
                return str(path)
            elif manifest.is_healthy:
                self._say(f"{path} was saved as one of {manifest.run}: it is whole and is loaded.")
                return str(path)
            else:
                self._say(
                    f"{path} is passed over: the state of step {manifest.step} was not healthy "
                    "when it was saved."
                )
        return None

    def _numbered(self) -> list[tuple[int, Path]]:
        return compat.numbered(compat.output_dir(self._host))

    def _say(self, message: str) -> None:
        if self._session.rank == 0:
            _log.warning(message)
            self._session.note(message)


def _manifest_of(path: Path) -> Manifest | None:
    """What the contract has written about a checkpoint, for whichever run."""
    generations = read_generations(path)
    return None if generations is None else generations.new
