"""Where in a backward a rank's own work ends and waiting for other ranks begins.

It imports torch, so nothing that the monitor runs may import it.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class OwnWorkEnd:
    """Finds the parameter whose gradient is ready last and stamps that moment.

    What remains of the backward after it is waiting for other ranks. The order is the
    same in every step of a static graph, so one backward with a hook on every parameter
    tells which one to keep.
    """

    def __init__(self, module: nn.Module, stamp: Callable[[], None]) -> None:
        """Hooks every parameter for the next backward."""
        self._stamp = stamp
        self._last: Tensor | None = None
        self._hook: Any = None
        self._search = [
            _on_gradient(parameter, self._see)
            for parameter in module.parameters()
            if parameter.requires_grad and parameter.is_leaf
        ]

    def settle(self) -> None:
        """After a backward: keeps the one hook that fired last."""
        if self._hook is None and self._last is not None:
            self._drop_search()
            stamp = self._stamp
            self._hook = _on_gradient(self._last, lambda _: stamp())
            # The hook is found through the parameter; the parameter need not be kept alive.
            self._last = None

    @property
    def is_settled(self) -> bool:
        """Whether the last parameter is known."""
        return self._hook is not None

    def remove(self) -> None:
        """Takes all hooks away."""
        self._drop_search()
        if self._hook is not None:
            self._hook.remove()

    def _see(self, parameter: Tensor) -> None:
        self._last = parameter

    def _drop_search(self) -> None:
        for hook in self._search:
            hook.remove()
        self._search = []


def _on_gradient(parameter: Any, then: Callable[[Tensor], None]) -> Any:
    """Calls ``then`` whenever the gradient of ``parameter`` is there; returns the hook."""
    return parameter.register_post_accumulate_grad_hook(then)
