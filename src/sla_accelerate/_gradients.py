"""The gradients of a hand-written loop, looked at right before each update."""

from typing import Any

from slav1.gradients import GradientWatch, leaves_out
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
        self.are_whole = False
        """Whether ranks that sync hold the same, whole gradients."""
        self.has_scaler = False
        """Whether a gradient scaler skips updates in healthy runs."""
        self.known_norm: Any = None
        """Norm of all gradients of the step in hand, where the loop has had it computed."""

    def before_update(self, optimizer: Any, *, is_synced: bool, is_only_one: bool) -> None:
        """An optimizer is about to make a real step.

        Args:
            optimizer: The one of torch.
            is_synced: Whether the last backward ended in a gradient sync.
            is_only_one: Whether there is no other optimizer.
        """
        norm, self.known_norm = self.known_norm, None
        self.watch.before_update(
            optimizer,
            are_whole=self.are_whole and (is_synced or self._session.peers.world_size == 1),
            known_norm=norm if is_only_one else None,
            is_scaled=self.has_scaler,
        )
        self.watch.lower_rates(optimizer)

    def of_engine(self, norm: Any) -> None:
        """An engine that updates by itself has done so; tells of an overflow by -1."""
        is_norm = norm is not None and not (isinstance(norm, float) and norm < 0)
        self.watch.hear_of(norm if is_norm else None, is_scaled=self.has_scaler)

    def _tell(self, message: str) -> None:
        if self._session.rank == 0:
            self._session.note(message)
