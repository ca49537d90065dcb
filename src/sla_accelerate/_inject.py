"""Wiring planned faults into a watched loop. Only there when there are any."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sla_accelerate._prepared import Prepared
from slav1.testing import Faults


class FaultPoints:
    """Hands batch, loss and gradients of each step through the faults.

    Each method is called right after the phase it is about was published.
    """

    def __init__(self, faults: Faults, prepared: Prepared) -> None:
        self._faults = faults
        self._prepared = prepared
        self._sync_again: Callable[[], None] | None = None

    def at_data(self, step: int) -> bool:
        """A batch is asked for; returns whether this rank still has one."""
        self._faults.at("data", step)
        return not self._faults.ends_data(step)

    def at_forward(self, step: int, batch: Any) -> Any:
        """The batch is there; returns the one to train with."""
        self._faults.at("forward", step)
        if self._faults.skips_sync(step):
            # DDP decides in its forward whether the backward will sync.
            self._sync_again = self._prepared.leave_out_sync()
        return self._faults.batch(step, batch)

    def loss(self, step: int, loss: Tensor) -> Tensor:
        """The loss is there; returns the one to go on with."""
        return self._faults.loss(step, loss)

    def at_backward(self, step: int) -> None:
        """The backward begins."""
        self._faults.at("backward", step)

    def after_backward(self, step: int, *, has_gradients: bool) -> None:
        """The backward is over; with ``has_gradients`` the update comes next."""
        if self._sync_again is not None:
            self._sync_again()
            self._sync_again = None
        if has_gradients:
            self._faults.gradients(step, self._prepared.parameters())

    def at_optimizer(self, step: int) -> None:
        """An optimizer is about to make a real step."""
        self._faults.memory(step, self._prepared.optimizers())
        self._faults.at("optimizer", step)

    def at_step_end(self, step: int) -> None:
        """The step is over and written down."""
        self._faults.at("step_end", step)
