"""What the metrics of this package have in common beside torchmetrics' own class."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torchmetrics import Metric


class ServiceMetric(Metric):
    """A service-level figure: bounded state, exact over long runs, in the checkpoint.

    - **State** is of fixed size, in 64 bits, and stays so when the module around it is cast to
      another type. It is made on the default device and moves with ``to(device)``. An
      update with Python numbers never waits for a device.
    - **Calling it** (``metric(value)``) updates it and returns this rank's figure so far: the
      figure of a single step would mean nothing. ``compute()`` is that of all ranks.
    - **Without data** every figure is NaN.
    - **A checkpoint** holds the state of one rank, or of all together after
      :func:`~slav1.metrics.gather_into`. Global rank 0 goes on from it, all others start
      empty, so that nothing is counted twice.
    """

    is_differentiable = False
    full_state_update = False

    def __init__(self, **kwargs: Any) -> None:
        """Takes what every ``torchmetrics.Metric`` takes."""
        # With a cache a rank that has counted nothing since the last `compute` would not come
        # to the next one, for which the others wait.
        super().__init__(**{"compute_with_cache": False, **kwargs})
        if self._device.type == "meta":
            # A model may be made without memory and filled later; a count can't.
            self._device = torch.device("cpu")

    @property
    def update_called(self) -> bool:
        """True: a rank that counts nothing itself need not be warned of, and no data is NaN."""
        return True

    def keep(
        self,
        name: str,
        size: int,
        dtype: torch.dtype,
        *,
        fill: float = 0,
        reduce: str | Callable[[Tensor], Tensor] = "sum",
    ) -> None:
        """Adds a state of so many numbers that goes into checkpoints."""
        default = torch.full((size,), fill, dtype=dtype, device=self._device)
        self.add_state(name, default, dist_reduce_fx=reduce, persistent=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Updates, and returns this rank's figure so far."""
        self.update(*args, **kwargs)
        self._to_sync = self.dist_sync_on_step
        try:
            self._forward_cache = self.compute()
        finally:
            self._to_sync = self.sync_on_compute
            self._computed = None
        return self._forward_cache

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draws the figure, or a list of figures over time; needs matplotlib.

        Args:
            val: What ``compute()`` gave, or a list of that; None for ``compute()`` now.
            ax: Axes of matplotlib to draw into; None for new ones.

        Returns:
            Figure (None if ``ax`` was given) and axes.
        """
        return self._plot(val, ax)

    def figure(self) -> float:
        """This rank's own figure, without any communication."""
        with torch.no_grad():
            return float(type(self).compute(self))

    def _numbers(self, value: float | Tensor | Sequence[float]) -> Tensor:
        """One or many numbers on our device, without waiting for it if they are not there yet."""
        if isinstance(value, Tensor):
            return value.detach().to(device=self.device, dtype=torch.float64).reshape(-1)
        if isinstance(value, Sequence):
            return torch.tensor(value, dtype=torch.float64, device=self.device)
        return torch.full((1,), value, dtype=torch.float64, device=self.device)

    def _figure(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64, device=self.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        if self._dtype_convert:
            return super()._apply(fn)
        device = fn(torch.empty(0, device=self._device)).device
        if device.type == "meta":
            return self
        return super()._apply(lambda tensor: tensor.to(device))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        kept = {
            name: state_dict.pop(prefix + name)
            for name in self._defaults
            if prefix + name in state_dict
        }
        super()._load_from_state_dict(state_dict, prefix, *rest)
        error_msgs: list[str] = rest[-1]
        if not kept:
            return
        self.reset()
        if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
            return
        for name, value in kept.items():
            mine = getattr(self, name)
            if value.shape == mine.shape:
                setattr(self, name, value.detach().to(mine, copy=True))
            else:
                error_msgs.append(
                    f"{prefix}{name} has shape {tuple(value.shape)} in the checkpoint and "
                    f"{tuple(mine.shape)} here: the {type(self).__name__} was made with other "
                    "settings."
                )
