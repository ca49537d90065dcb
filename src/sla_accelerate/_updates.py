"""The updates of one optimizer, each told of once however it is made."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


class Updates:
    """Torch's hooks around the real updates of an optimizer.

    A class that derives from one of torch's and calls its ``step`` runs the hooks of both
    for one update: only the outer ones count.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        before: Callable[[Optimizer], None],
        after: Callable[[Optimizer], None],
    ) -> None:
        """Hooks the optimizer; does not keep it alive.

        Args:
            optimizer: One of torch's.
            before: Called before each update.
            after: Called after it; what it raises reaches the user's loop.
        """
        self._before = before
        self._after = after
        self._depth = 0
        self._hooks: list[Any] = [
            optimizer.register_step_pre_hook(lambda which, *_: self._enter(which)),
            optimizer.register_step_post_hook(lambda which, *_: self._leave(which)),
        ]

    def forget(self) -> None:
        """No update is under way, whatever came of the last one: it may have raised."""
        self._depth = 0

    def remove(self) -> None:
        """Takes the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, optimizer: Optimizer) -> None:
        self._depth += 1
        if self._depth == 1:
            self._before(optimizer)

    def _leave(self, optimizer: Optimizer) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._depth = 0
            self._after(optimizer)
