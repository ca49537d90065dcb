"""Leaving an update out whose gradient is not finite: no rank is asked, no device waited for."""

import math
from typing import Any

from torch import Tensor

from slav1.gradients.plan import Plan, gradients_here, real_gradients
from slav1.gradients.readings import (
    can_be_zeroed,
    flag_unless_all_finite,
    flag_unless_finite,
    keep_or_zero,
)


class Reflex:
    """Sees to it that a gradient that is not finite changes nothing."""

    def __init__(self) -> None:
        """Starts without having touched anything."""
        self._told: list[Any] = []

    def leave_out(self, plan: Plan, gradients: list[Tensor], norm: Any, step: int) -> Tensor | bool:
        """Leaves the update out that comes next, if it has to be.

        On processors the gradients are taken away, so that no state of the optimizer changes.
        On a device a fused update is told to do nothing; for any other the gradients are set
        to zero there, which still lets momentum and weight decay act.

        Args:
            plan: What is looked at.
            gradients: All of them; needed on a device only, and only if the update is not fused.
            norm: Theirs; None if not all were read: then a few small ones are looked at.
            step: Counts steps, so that it is others' turn in the next.

        Returns:
            Whether it is left out; on a device 1.0 or 0.0.
        """
        if plan.is_on_host:
            norm = _probed(plan, step) if norm is None else norm
            return not math.isfinite(norm) and _taken_away(_optimizer_of(plan))
        is_bad = _seen(plan, norm, step)
        if is_bad is None:
            return False
        return self._on_device(_optimizer_of(plan), gradients, is_bad, is_fused=plan.is_fused)

    def leave_out_known(self, optimizer: Any, norm: Tensor | float) -> Tensor | bool:
        """The same where this rank holds parts of gradients, and the host has reduced their norm.

        Args:
            optimizer: One of torch's, about to make a step.
            norm: Of all gradients, the same on all ranks; on a device it is not waited for.

        Returns:
            Whether it is left out; on a device 1.0 or 0.0.
        """
        if not isinstance(norm, Tensor) or norm.device.type == "cpu":
            return not math.isfinite(norm) and _taken_away(optimizer)
        given = [one for group in optimizer.param_groups for one in group["params"]]
        is_bad = flag_unless_finite(norm)
        return self._on_device(optimizer, gradients_here(given), is_bad, is_fused=False)

    def _on_device(
        self, optimizer: Any, gradients: list[Tensor], is_bad: Tensor, *, is_fused: bool
    ) -> Tensor | bool:
        if is_fused:
            if all(optimizer is not one for one in self._told):
                self._told.append(optimizer)
            optimizer.found_inf = is_bad
        elif can_be_zeroed(gradients):
            keep_or_zero(gradients, is_bad)
        else:
            return False
        return is_bad

    def close(self) -> None:
        """Takes back what optimizers were told."""
        for optimizer in self._told:
            vars(optimizer).pop("found_inf", None)
        self._told.clear()


def _optimizer_of(plan: Plan) -> Any:
    optimizer = plan.optimizer()
    assert optimizer is not None, "it is about to make a step"
    return optimizer


def _seen(plan: Plan, norm: Any, step: int) -> Tensor | None:
    """1.0 or 0.0 on the device; None if there is nothing to look at."""
    if isinstance(norm, Tensor):
        return flag_unless_finite(norm)
    probes = real_gradients(plan, plan.probes[step % len(plan.probes)]) if norm is None else []
    return flag_unless_all_finite(probes) if probes else None


def _probed(plan: Plan, step: int) -> float:
    """Finite if the gradients whose turn it is are."""
    total = 0.0
    for gradient in real_gradients(plan, plan.probes[step % len(plan.probes)]):
        # In the same type as a norm: a sum of healthy halves may leave their range. One by
        # one, since what takes a list has more to prepare than two of these.
        total += gradient.sum(dtype=plan.dtype).item()
    return total


def _taken_away(optimizer: Any) -> bool:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
    return True
