"""The data position of one rank: of all its loaders, step by step, in and out of a file."""

import json
import logging
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from weakref import ref

import torch

from sla_accelerate._batches import noise as _noise
from sla_accelerate._batches import plan as _plan
from sla_accelerate._batches.order import Skip
from sla_accelerate._batches.passes import LoaderTrack
from sla_accelerate._compat import track_of

VERSION = 1
"""Version of the file's content."""

NUM_STEPS = 4096
"""How many steps back it is known which batches they were made of."""

FOR_EVER = 1 << 62
"""Number of a batch that no pass reaches."""

_log = logging.getLogger("sla_accelerate")


class Place(NamedTuple):
    """How far one loader was."""

    epoch: int
    """The pass, from 0."""

    num_handed: int
    """Batches of it that the loop had got."""


def name_of(rank: int) -> str:
    """Name of the file of a rank in the folder of a checkpoint."""
    return f"sla_position_{rank}.json"


class Positions:
    """Where all prepared loaders of this process are. Keeps none of them alive."""

    def __init__(self) -> None:
        self.epoch = 0
        """The epoch that the loop is in, or begins next."""
        self._loaders: list[ref[Any]] = []
        self._steps: deque[tuple[int, tuple[Place, ...]]] = deque(maxlen=NUM_STEPS)

    def add(self, loader: Any) -> None:
        """Looks after a prepared loader."""
        self._loaders.append(ref(loader))

    def clear(self) -> None:
        """Forgets all loaders."""
        self._loaders.clear()
        self._steps.clear()

    @property
    def trains_with_loader(self) -> bool:
        """Whether the loop gets what it trains with from a prepared loader."""
        return any(track.is_training for _, track in self._tracked())

    @property
    def num_in_open_passes(self) -> int:
        """Batches that were handed out in passes that are not over."""
        return sum(track.num_handed for _, track in self._tracked() if track.is_open)

    def note_step(self, step: int) -> None:
        """A training step has ended."""
        # Nothing but this is done in each step.
        places = [
            Place(track.epoch, track.num_handed)
            for reference in self._loaders
            if (loader := reference()) is not None and (track := track_of(loader)) is not None
        ]
        self._steps.append((step, tuple(places)))

    def set_chaining(self, *, chains_epochs: bool) -> None:
        """Whether loops go on by themselves when taken back over the end of an epoch."""
        for _, track in self._tracked():
            track.chains_epochs = chains_epochs

    def to_plain(self, *, world_size: int) -> dict[str, Any]:
        """All as plain values for JSON."""
        loaders = [
            {
                **_plan.to_plain(track.position(loader)),
                "skips": [list(skip) for skip in track.skips],
                "is_training": track.is_training,
            }
            for loader, track in self._tracked()
        ]
        return {
            "version": VERSION,
            "world_size": world_size,
            "noise": _noise.tensor_to_text(torch.get_rng_state()),
            "loaders": loaders,
        }

    def apply(self, plain: dict[str, Any] | None, *, world_size: int, step: int) -> str:
        """Lets every loader go on from a saved position. The host has restored the
        generators already.

        Args:
            plain: What :meth:`to_plain` made; None if there is none.
            world_size: How many ranks there are.
            step: Last step that the state contains.

        Returns:
            Why the position can't be used, in words; '' if it is.
        """
        tracked = self._tracked()
        reason = _why_not(plain, world_size, len(tracked))
        if reason:
            return reason
        assert plain is not None
        now = _noise.capture()
        for (loader, track), one in zip(tracked, plain["loaders"], strict=True):
            plan = _plan.from_plain(one)
            _plan.set_sources(loader, plan)
            if hasattr(loader, "iteration"):
                loader.iteration = plan.epoch
            # What was found bad since the checkpoint is still bad.
            saved = [Skip(*each) for each in one["skips"]]
            track.skips = tuple(dict.fromkeys([*saved, *track.skips]))
            track.plan = plan if plan.start is None else plan._replace(now=now)
            track.is_training = track.is_training or one["is_training"]
            track.epoch, track.num_handed = plan.epoch, plan.num_handed
        self.epoch = next((t.epoch for _, t in tracked if t.is_training), self.epoch)
        self._steps.clear()
        self._steps.append((step, tuple(_place(track) for _, track in tracked)))
        return ""

    def batches_of(self, onset: int, alarm: int) -> list[tuple[Skip, ...]]:
        """The batches that steps were made of, for each loader that is trained with.

        Args:
            onset: The first step.
            alarm: The last step.
        """
        places = dict(self._steps)
        before, after = places.get(onset - 1), places.get(alarm)
        tracked = self._tracked()
        if before is None or after is None or not len(before) == len(after) == len(tracked):
            return [() for _ in tracked]
        return [
            tuple(_between(first, last)) if track.is_training else ()
            for (_, track), first, last in zip(tracked, before, after, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._tracked())

    def forget_plans(self) -> None:
        """Lets every loader begin its next pass at the start after all."""
        for _, track in self._tracked():
            track.plan = None

    def leave_out(self, skips: list[tuple[Skip, ...]]) -> None:
        """Leaves batches out from now on."""
        for (_, track), more in zip(self._tracked(), skips, strict=True):
            track.skips = (*track.skips, *more)

    def _tracked(self) -> list[tuple[Any, LoaderTrack]]:
        alive = [loader for each in self._loaders if (loader := each()) is not None]
        both = [(loader, track_of(loader)) for loader in alive]
        return [(loader, track) for loader, track in both if track is not None]


def write(folder: Path, rank: int, plain: dict[str, Any]) -> None:
    """Writes the file of one rank."""
    (folder / name_of(rank)).write_text(json.dumps(plain))


def read(folder: Path, rank: int) -> dict[str, Any] | None:
    """Reads the file of one rank; None if there is none that can be used."""
    try:
        plain = json.loads((folder / name_of(rank)).read_text())
    except (OSError, ValueError):
        return None
    return plain if isinstance(plain, dict) and plain.get("version") == VERSION else None


def _why_not(plain: dict[str, Any] | None, world_size: int, num_loaders: int) -> str:
    if plain is None:
        return "the checkpoint has none that this version can read"
    if plain["world_size"] != world_size:
        return f"it was saved by {plain['world_size']} ranks and there are {world_size} now"
    if len(plain["loaders"]) != num_loaders:
        return (
            f"{len(plain['loaders'])} loaders were prepared when it was saved and {num_loaders} "
            "are now"
        )
    return ""


def _place(track: LoaderTrack) -> Place:
    return Place(track.epoch, track.num_handed)


def _between(first: Place, last: Place) -> Iterable[Skip]:
    """The batches after ``first`` up to ``last``."""
    for epoch in range(first.epoch, last.epoch + 1):
        begin = first.num_handed if epoch == first.epoch else 0
        end = last.num_handed if epoch == last.epoch else FOR_EVER
        if begin < end:
            yield Skip(epoch, begin, end)
