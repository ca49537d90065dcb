"""Wiring planned faults into Lightning. Only installed when there are any."""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from slav1.testing import Faults


class FaultPoints:
    """Hands the training step's batch, loss and gradients through the faults."""

    def __init__(self, faults: Faults, trainer: Trainer, module: LightningModule) -> None:
        """Wraps ``module.training_step``."""
        self._faults = faults
        self._trainer = trainer
        self._module = module
        self._step = 0
        host: Any = module
        # A compiled module has a training step of its own, beside that of its class.
        self._own_step = vars(host).get("training_step")
        host.training_step = self._wrapped(module.training_step)

    def at(self, where: str) -> None:
        """Does what is planned for a point that is being entered."""
        self._step = self._trainer.global_step
        self._faults.at(where, self._step)

    def before_optimizer(self) -> None:
        """The backward is over: gradients may be spoilt, then the optimizer begins."""
        self._faults.gradients(self._trainer.global_step, self._module.parameters())
        self._faults.memory(self._trainer.global_step, self._trainer.optimizers)
        self.at("optimizer")

    def remove(self) -> None:
        """Gives the module its own training step back."""
        host: Any = self._module
        if self._own_step is not None:
            host.training_step = self._own_step
        else:
            vars(host).pop("training_step", None)

    def _wrapped(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        def step_with_faults(*args: Any, **kwargs: Any) -> Any:
            self.at("forward")
            step = self._trainer.global_step
            if args:
                args = (self._faults.batch(step, args[0]), *args[1:])
            elif "batch" in kwargs:
                kwargs["batch"] = self._faults.batch(step, kwargs["batch"])
            model: Any = self._trainer.strategy.model
            if self._faults.skips_sync(step) and hasattr(model, "require_backward_grad_sync"):
                model.require_backward_grad_sync = False
            return self._spoilt(step, training_step(*args, **kwargs))

        return step_with_faults

    def _spoilt(self, step: int, output: Any) -> Any:
        if isinstance(output, Tensor):
            return self._faults.loss(step, output)
        if isinstance(output, dict) and isinstance(output.get("loss"), Tensor):
            return {**output, "loss": self._faults.loss(step, output["loss"])}
        return output
