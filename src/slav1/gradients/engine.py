"""Updates that DeepSpeed's engine makes by itself, inside of its backward."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from slav1.gradients.reflex import Reflex
from slav1.gradients.watch import GradientWatch
from slav1.torch_signals import Readings


class EngineUpdates:
    """What an engine made of each step; bad updates left out and rates lowered on all ranks alike.

    The engine reduces the norm of all gradients over all ranks before it updates. Where it
    finds by it that they are not finite it skips the update itself; with bfloat16 in stages 1
    and 2 it may be told to go on, and then a hook of torch's on the optimizer underneath leaves
    the update out.
    """

    def __init__(self, engine: Any, watch: GradientWatch, *, has_reflex: bool) -> None:
        """Starts where the engine is.

        Args:
            engine: A ``DeepSpeedEngine``.
            watch: Knows what learning rates are to be.
            has_reflex: Whether an update whose gradient is not finite is left out.
        """
        self._engine = engine
        self._watch = watch
        self._reflex = Reflex()
        self._num_made, self._num_skipped = self._counts()
        self._is_left_out: Tensor | bool = False
        self._is_scaled = bool(engine.fp16_enabled())
        inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
        has_norm = hasattr(engine.optimizer, "_global_grad_norm")
        self._hooks: list[Any] = []
        if not isinstance(inner, Optimizer):
            return
        if has_reflex and has_norm and not self._is_scaled:
            self._hooks.append(inner.register_step_pre_hook(lambda one, *_: self._before(one)))
        self._hooks += [
            inner.register_step_pre_hook(lambda one, *_: watch.lower_rates(one)),
            inner.register_step_post_hook(lambda *_: watch.put_rates_back()),
        ]

    @property
    def engine(self) -> Any:
        """Whose updates these are."""
        return self._engine

    def look(self) -> Readings | None:
        """What the engine has made since the last look; None if that is no step.

        A step that a loss scaler left out is none: it happens in healthy runs.
        """
        made, skipped = self._counts()
        num_made, self._num_made = made - self._num_made, made
        num_skipped, self._num_skipped = skipped - self._num_skipped, skipped
        is_left_out, self._is_left_out = self._is_left_out, False
        if num_made == 0 or (num_skipped and self._is_scaled):
            return None
        norm = self._engine.get_global_grad_norm()
        # Some versions tell of an overflow by a negative number.
        is_norm = norm is not None and not (isinstance(norm, float) and norm < 0)
        left_out = True if num_skipped else is_left_out
        return Readings(norm if is_norm else None, None, left_out, self._is_scaled)

    def close(self) -> None:
        """Takes the hooks away."""
        self._watch.put_rates_back()
        for hook in self._hooks:
            hook.remove()
        self._reflex.close()

    def _counts(self) -> tuple[int, int]:
        return int(self._engine.global_steps), int(self._engine.skipped_steps)

    def _before(self, optimizer: Optimizer) -> None:
        """One group of parameters is updated; the norm is that of all, so all get one answer."""
        norm = self._engine.optimizer._global_grad_norm  # noqa: SLF001 - its engine's method tells the one before
        if norm is not None:
            self._is_left_out = self._reflex.leave_out_known(optimizer, norm)
