"""The gradients of a hand-written loop, looked at right before each update."""

from typing import Any

from torch.distributed.tensor import DTensor, Replicate
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from slav1.gradients import EngineUpdates, GradientWatch, leaves_out
from slav1.session import Session


class LoopGradients:
    """What one loop's gradients are looked at by, and what is known about them."""

    def __init__(self, session: Session) -> None:
        """Starts before the first step.

        Args:
            session: This rank's session.
        """
        self._session = session
        self.watch = GradientWatch(
            session.contract.gradients,
            has_reflex=leaves_out(session.contract),
            tell=self._tell,
            is_told_of_updates=True,
        )
        self._engine: EngineUpdates | None = None
        self.are_whole = False
        """Whether each rank holds whole gradients; those of a sync are the same on all."""
        self.has_scaler = False
        """Whether a gradient scaler skips updates in healthy runs."""
        self._known_norm: Any = None
        self._is_known_alike = False

    def note_norm(self, norm: Any, *, is_alike: bool) -> None:
        """The loop has had the norm of all gradients of the step in hand computed; the first
        one counts, which is that from before any clipping.

        Args:
            norm: A number, or shape ``()`` on a device.
            is_alike: Whether it is the same on all ranks, though each holds parts.
        """
        if self._known_norm is None:
            self._known_norm, self._is_known_alike = norm, is_alike

    def forget_norm(self) -> None:
        """Gradients change: what was computed is not their norm."""
        self._known_norm, self._is_known_alike = None, False

    def before_update(self, optimizer: Any, *, is_synced: bool, is_only_one: bool) -> None:
        """An optimizer is about to make a real step.

        Args:
            optimizer: The one of torch.
            is_synced: Whether the last backward ended in a gradient sync.
            is_only_one: Whether there is no other optimizer.
        """
        norm, is_alike = self._known_norm, self._is_known_alike
        self.forget_norm()
        self.watch.before_update(
            optimizer,
            are_whole=self.are_whole,
            is_reduced=is_synced or self._session.peers.world_size == 1,
            known_norm=norm if is_only_one else None,
            is_known_alike=is_alike,
            is_scaled=self.has_scaler,
        )
        self.watch.lower_rates(optimizer)

    def of_engine(self, engine: Any) -> EngineUpdates:
        """What one engine makes; the same object for the same engine."""
        if self._engine is None or self._engine.engine is not engine:
            self.forget_engine()
            has_reflex = leaves_out(self._session.contract)
            self._engine = EngineUpdates(engine, self.watch, has_reflex=has_reflex)
        return self._engine

    def forget_engine(self) -> None:
        """The engine is not watched any more."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _tell(self, message: str) -> None:
        if self._session.rank == 0:
            self._session.note(message)


def clip_parts(parameters: list[Any], max_norm: float) -> Any:
    """Collective, once, as the host's own clipping is. Clips gradients that are spread over ranks.

    The host's reduces the norm where nobody can read it; this returns it reduced.

    Args:
        parameters: With DTensors of one mesh as gradients, or without gradients.
        max_norm: L2 norm to clip to.

    Returns:
        The norm from before, a DTensor that holds all of it on each rank.
    """
    norm: Any = get_total_norm([one.grad for one in parameters if one.grad is not None])
    norm = norm.redistribute(placements=[Replicate()] * norm.device_mesh.ndim)
    clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def are_parts_of_one_mesh(parameters: list[Any]) -> bool:
    """Whether all gradients are DTensors of the same mesh."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    if not gradients or not all(isinstance(one, DTensor) for one in gradients):
        return False
    return len({one.device_mesh for one in gradients}) == 1


def are_all_of_one(parameters: list[Any], models: list[Any]) -> bool:
    """Whether these are all parameters of one of the models."""
    given = [id(one) for one in parameters]
    return any(given == [id(one) for one in model.parameters()] for model in models)
