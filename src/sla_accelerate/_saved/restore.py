"""Loads one checkpoint into an accelerator: all of it, on all ranks, or an error on all."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sla_accelerate._batches import noise as _noise
from sla_accelerate._batches import position as _position
from sla_accelerate._saved import side_file
from sla_accelerate._saved.side_file import Saved
from sla_accelerate._saved.state import HeldState
from slav1.checkpoint.errors import CheckpointError, WorldSizeError
from slav1.checkpoint.manifest import Manifest
from slav1.checkpoint.peers import Peers
from slav1.contract.settings import CheckpointSettings

_CUSTOM = re.compile(r"custom_checkpoint_\d+\.pkl")

# The host counts micro-batches from 0, so it never saves this one.
_NO_STEP = -1


class LoadFailedError(CheckpointError):
    """A whole checkpoint could not be loaded; raised on all ranks.

    Attributes:
        path: The checkpoint.
        reasons: What went wrong, by rank.
        is_touched: Whether something of it was loaded already.
    """

    def __init__(self, path: Path, reasons: Mapping[int, str], *, is_touched: bool) -> None:
        texts = "; ".join(f"rank {rank}: {reason}" for rank, reason in sorted(reasons.items()))
        state = (
            "What is in memory is part old, part new: load another checkpoint before going on."
            if is_touched
            else "Nothing of it was loaded."
        )
        super().__init__(f"{path} could not be loaded. {state} {texts}.")
        self.path = path
        self.reasons = dict(reasons)
        self.is_touched = is_touched


class Loaded(NamedTuple):
    """What else lay in a checkpoint that was loaded."""

    path: Path
    """The checkpoint."""

    saved: Saved | None
    """Step and detectors; None on ranks other than 0, or if there are none."""

    position: dict[str, Any] | None
    """Data position of this rank; None if there is none."""

    is_ours: bool
    """Whether it was saved under the contract."""

    has_noise: bool
    """Whether it holds states of this rank's generators."""


class Restorer:
    """Loads checkpoints with the host's ``load_state``."""

    def __init__(
        self,
        accelerator: Any,
        *,
        load: Callable[..., None],
        held: Callable[[], HeldState],
        num_custom: Callable[[], int],
    ) -> None:
        """Starts with nothing.

        Args:
            accelerator: The accelerator.
            load: The host's ``load_state``, bound to it.
            held: Returns what it holds.
            num_custom: Returns how many objects are registered for checkpointing.
        """
        self._accelerator = accelerator
        self._load = load
        self._held = held
        self.num_registered = num_custom
        """Returns how many objects of the user's are registered for checkpointing."""

    def load(
        self,
        peers: Peers,
        path: Path,
        manifest: Manifest | None,
        settings: CheckpointSettings,
        options: Mapping[str, Any],
    ) -> Loaded:
        """Collective. Loads a checkpoint that was verified if ``manifest`` is given.

        Raises:
            WorldSizeError: If it was saved by another number of ranks and can't be spread.
            LoadFailedError: On all ranks, if it fails on one of them.
        """
        rank, held = peers.rank, self._held()
        if manifest is not None and held.is_deepspeed and manifest.world_size != peers.world_size:
            raise WorldSizeError(path=path, saved=manifest.world_size, present=peers.world_size)
        is_same_size = manifest is not None and manifest.world_size == peers.world_size
        has_noise = is_same_size or (path / f"random_states_{rank}.pkl").exists()
        position = _position.read(path, rank) if manifest is not None else None

        def meet(topic: str, reason: str, *, is_touched: bool) -> None:
            answers = peers.gather(f"load {topic}", reason, limit_s=settings.limit_s)
            reasons = {one: answer for one, answer in enumerate(answers) if answer}
            if reasons:
                raise LoadFailedError(path, reasons, is_touched=is_touched)

        meet("begins", self._look(path, rank, has_noise=has_noise), is_touched=False)
        step = self._accelerator.step
        reason = ""
        try:
            self._accelerator.step = _NO_STEP
            self._load(str(path), **options)
            reason = self._missed(rank, position) if has_noise else ""
        except Exception as error:  # noqa: BLE001 - whatever a host raises is told to all
            reason = f"{type(error).__name__}: {error}"
        if self._accelerator.step == _NO_STEP:
            self._accelerator.step = step
        meet("ends", reason, is_touched=True)
        held.forget_gradients()
        self._compare(peers, path, settings)
        saved = side_file.read(path) if rank == 0 else None
        return Loaded(path, saved, position, manifest is not None, has_noise)

    def _look(self, path: Path, rank: int, *, has_noise: bool) -> str:
        """What would make the host fail after it has loaded half of the state; '' for nothing."""
        found = sum(1 for file in path.iterdir() if _CUSTOM.fullmatch(file.name))
        num_registered = self.num_registered()
        if found != num_registered:
            return (
                f"it holds {found} objects of register_for_checkpointing and {num_registered} "
                "are registered; register the same ones as when it was saved"
            )
        noise = path / f"random_states_{rank}.pkl"
        if has_noise and not noise.is_file():
            return f"{noise.name} is missing"
        return ""

    def _missed(self, rank: int, position: dict[str, Any] | None) -> str:
        """What the host left out without a word; '' for nothing."""
        name = f"random_states_{rank}.pkl"
        if self._accelerator.step == _NO_STEP:
            return f"the host could not read {name} and said nothing"
        if position is not None:
            wanted = _noise.tensor_from_text(position["noise"])
            if not torch.equal(torch.get_rng_state(), wanted):
                return f"the generators are not in the state that {name} should have put them in"
        return ""

    def _compare(self, peers: Peers, path: Path, settings: CheckpointSettings) -> None:
        """What is equal on all ranks by design is equal after loading."""
        roots = peers.gather("load replicas", self._held().fingerprint(), limit_s=settings.limit_s)
        apart = {
            rank: "its parameters differ from those of rank 0"
            for rank, root in enumerate(roots)
            if root != roots[0]
        }
        if apart:
            raise LoadFailedError(path, apart, is_touched=True)
