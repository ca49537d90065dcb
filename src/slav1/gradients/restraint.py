"""Clip and decay: shorter gradients and a lower learning rate for some steps, then as before."""

from typing import Any, NamedTuple
from weakref import WeakSet

from torch import Tensor
from torch.optim import Optimizer


class Restraint(NamedTuple):
    """How training is held back; nothing if no step is left."""

    num_steps_left: int = 0
    max_norm: float = 0.0
    """What gradients are clipped to, as an L2 norm; 0 for no clipping."""
    factor: float = 1.0
    """What learning rates are multiplied with."""


class DecayedRates:
    """Lets updates see a lower learning rate than everybody else does.

    The rate is lowered right before an update and put back right after it. So schedulers,
    which compute the next rate from the one they find, and checkpoints know nothing of it,
    and it is over without a trace.
    """

    def __init__(self) -> None:
        """Starts without lowering any."""
        self.factor = 1.0
        """What rates are multiplied with."""
        self._lowered: list[tuple[dict[str, Any], Any]] = []
        self._known: WeakSet[Optimizer] = WeakSet()
        self._hooks: list[Any] = []

    def cover(self, optimizer: Any, *, is_in_step: bool = False) -> bool:
        """Lowers the rates of an optimizer from now on; a second call does nothing.

        Args:
            optimizer: One of torch's, or one that holds such a one.
            is_in_step: Whether its update has begun and still has to read its rate.

        Returns:
            Whether that is possible.
        """
        inner = (
            optimizer if isinstance(optimizer, Optimizer) else getattr(optimizer, "optimizer", 0)
        )
        if not isinstance(inner, Optimizer):
            return False
        if inner not in self._known:
            self._known.add(inner)
            self._hooks += [
                inner.register_step_pre_hook(lambda which, *_: self.lower(which)),
                inner.register_step_post_hook(lambda *_: self.put_back()),
            ]
            if is_in_step:
                self.lower(inner)
        return True

    def remove(self) -> None:
        """Takes the hooks away; all rates are as they were."""
        self.put_back()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._known.clear()

    def lower(self, optimizer: Optimizer) -> None:
        """Lowers the rates until they are put back."""
        self.put_back()
        for group in optimizer.param_groups:
            rate = group["lr"]
            if isinstance(rate, Tensor):
                # A compiled update keeps to this very tensor.
                self._lowered.append((group, rate.clone()))
                rate.mul_(self.factor)
            else:
                self._lowered.append((group, rate))
                group["lr"] = rate * self.factor

    def put_back(self) -> None:
        """The rates are what they were."""
        for group, rate in self._lowered:
            if isinstance(rate, Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
        self._lowered.clear()
