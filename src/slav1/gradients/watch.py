"""Looks at the reduced gradient of each step before the update uses it."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from slav1.contract import Contract, Mode
from slav1.contract.settings import GradientSettings
from slav1.gradients.clipping import Shortener
from slav1.gradients.plan import Plan, plan_for, real_gradients, why_unread
from slav1.gradients.readings import part_of, total_norm, zero_share
from slav1.gradients.reflex import Reflex
from slav1.gradients.restraint import DecayedRates, Restraint
from slav1.torch_signals import NOTHING_READ, Readings

REMEMBERED_NORMS = 128
"""Norms that the usual one is taken from, in readings."""

PLAN_STEPS = 256
"""Steps after which it is looked again which parameters are trained."""

LEARNED_NORMS = 16
"""Fewer of them say nothing about what is usual."""


def leaves_out(contract: Contract) -> bool:
    """Whether a contract lets an update be left out whose gradient is not finite."""
    rule = contract.rules["non_finite"]
    return rule.mode is Mode.ENFORCE and bool(getattr(rule.detector, "reflex", False))


class GradientWatch:
    """Reads gradients, leaves bad updates out, clips. One for a training; no rank is asked.

    Everything here follows from the reduced gradient, which all replicas hold alike, so all
    do the same. On a device nothing is waited for: numbers stay there and are read later.
    """

    def __init__(
        self,
        settings: GradientSettings,
        *,
        has_reflex: bool,
        tell: Callable[[str], None],
        is_told_of_updates: bool = False,
    ) -> None:
        """Starts before the first step.

        Args:
            settings: The contract's.
            has_reflex: Whether an update whose gradient is not finite is left out.
            tell: Takes a sentence for people.
            is_told_of_updates: Whether the host calls :meth:`lower_rates` and
                :meth:`put_rates_back` around each update; else the optimizers are hooked.
        """
        self._is_told_of_updates = is_told_of_updates
        self._settings = settings
        self._has_reflex = has_reflex
        self._tell = tell
        self._plans: dict[int, Plan | None] = {}
        self._said: set[str] = set()
        self._num_steps = 0
        self._parts: list[Readings] = []
        self._norms: deque[float] = deque(maxlen=REMEMBERED_NORMS)
        self._shortener = Shortener(settings)
        self._reflex = Reflex()
        self._restraint = Restraint()
        self._rates = DecayedRates()

    def before_update(
        self,
        optimizer: Any,
        *,
        are_whole: bool,
        is_reduced: bool = True,
        known_norm: Tensor | float | None = None,
        is_known_alike: bool = False,
        is_scaled: bool = False,
    ) -> None:
        """An optimizer is about to update with the gradients that are there.

        Args:
            optimizer: The one of torch, with its parameters.
            are_whole: Whether each rank holds the whole gradient, and not a part of it.
            is_reduced: Whether it is the same on all ranks.
            known_norm: The norm, where the host has computed it.
            is_known_alike: Whether that is the same number on all ranks, though each holds only
                parts of the gradient.
            is_scaled: Whether a gradient scaler is at work.
        """
        if self._restraint.num_steps_left and not self._is_told_of_updates:
            self._rates.cover(optimizer, is_in_step=not is_scaled)
        handles_scale = getattr(optimizer, "_step_supports_amp_scaling", False)
        if not self._is_wanted or (is_scaled and handles_scale):
            # An update that unscales by itself comes before its gradients are worth reading.
            return
        try:
            plan = self._plan(optimizer, are_whole=are_whole, is_reduced=is_reduced)
            if plan is not None:
                self._parts.append(self._look(plan, known_norm, is_scaled=is_scaled))
            elif known_norm is not None:
                has_reflex = self._has_reflex and is_known_alike and not is_scaled
                self._take_known(optimizer, known_norm, has_reflex=has_reflex, is_scaled=is_scaled)
        except Exception as error:  # noqa: BLE001 - a look must not end a training
            self._plans[id(optimizer)] = None
            self._say(f"Gradients are not looked at any more: {type(error).__name__}: {error}")

    def lower_rates(self, optimizer: Any) -> None:
        """An update of an optimizer of torch's begins."""
        if self._restraint.num_steps_left:
            self._rates.lower(optimizer)

    def put_rates_back(self) -> None:
        """The update is over."""
        self._rates.put_back()

    def hear_of(self, made: Readings) -> None:
        """A host that updates by itself tells afterwards what it did."""
        norm = _on_host_if_cheap(made.norm) if self._settings.norm else None
        self._parts.append(made._replace(norm=norm))

    def take(self) -> Readings:
        """The step is over; returns what was read of its gradients."""
        self._num_steps += 1
        if self._restraint.num_steps_left:
            self._count_down()
        parts, self._parts = self._parts, []
        if len(parts) <= 1:
            return parts[0] if parts else NOTHING_READ
        return _joined(parts)

    def heard(self, norm: float) -> None:
        """A norm has arrived on the host."""
        if math.isfinite(norm):
            self._norms.append(norm)

    @property
    def usual_norm(self) -> float:
        """Median of the last norms; 0 if there are too few."""
        return median(self._norms) if len(self._norms) >= LEARNED_NORMS else 0.0

    def restrain(self, usual_norm: float, optimizers: list[Any]) -> str:
        """Clips gradients and lowers learning rates for some steps.

        Args:
            usual_norm: What to clip to, the same on all ranks; 0 for no clipping.
            optimizers: All of the training.

        Returns:
            What is done, as a sentence for people.
        """
        settings = self._settings
        factor = max(settings.min_decay, self._rates.factor * settings.decay)
        self._restraint = Restraint(settings.decay_steps, usual_norm, factor)
        self._rates.factor = factor
        covered = [self._is_told_of_updates or self._rates.cover(one) for one in optimizers]
        if not all(covered):
            self._say("Some optimizers are none of torch's: their learning rates stay.")
        clipped = (
            f"Gradients are clipped to a norm of {usual_norm:.4g}"
            if usual_norm
            else "No usual gradient norm is known, so nothing is clipped"
        )
        return (
            f"{clipped}, and learning rates are multiplied by {factor:g}, for the next "
            f"{settings.decay_steps} steps."
        )

    def state(self) -> dict[str, Any]:
        """What belongs into a checkpoint, as plain values. Waits for a device."""
        return {
            "norms": list(self._norms),
            "clip": self._shortener.state(),
            "restraint": list(self._restraint),
        }

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Goes on from :meth:`state`; None starts afresh."""
        state = state or {}
        self._norms = deque(state.get("norms", ()), maxlen=REMEMBERED_NORMS)
        self._shortener.load(state.get("clip", ()))
        left, max_norm, factor = state.get("restraint", Restraint())
        self._restraint = Restraint(int(left), max_norm, factor)
        self._rates.remove()
        self._rates.factor = factor

    def close(self) -> None:
        """Takes everything back that hangs on optimizers."""
        self._rates.remove()
        self._reflex.close()
        self._plans.clear()

    @property
    def _is_wanted(self) -> bool:
        settings = self._settings
        is_needed = self._has_reflex or self._shortener.is_adaptive or settings.norm
        return is_needed or self._restraint.max_norm > 0.0 or settings.zero_share_every > 0

    def _plan(self, optimizer: Any, *, are_whole: bool, is_reduced: bool) -> Plan | None:
        if are_whole and not is_reduced:
            # Only now: the next update may come after a sync again.
            why = why_unread(optimizer) or (
                "no sync of ranks was seen before an update (LocalSGD, no_sync, or a model that "
                "was not prepared)"
            )
            self._say(f"Gradients are not looked at, because {why}.")
            return None
        number = id(optimizer)
        if number in self._plans:
            plan = self._plans[number]
            if plan is None:
                return None
            is_as_planned = plan.num_groups == len(optimizer.param_groups)
            # Layers may be frozen or thawed; all ranks look at the same step.
            is_fresh = self._num_steps % PLAN_STEPS > 0
            if plan.optimizer() is optimizer and is_as_planned and is_fresh:
                return plan
        made = (
            plan_for(optimizer, norm_every=self._settings.norm_every)
            if are_whole
            else "they are spread over ranks, and one would have to ask them in each step; "
            "clipping by accelerator.clip_grad_norm_ asks them, and its norm is taken"
        )
        if isinstance(made, str):
            self._say(f"Gradients are not looked at, because {made}.")
            self._plans[number] = None
            return None
        self._plans[number] = made
        return made

    def _look(self, plan: Plan, known_norm: Any, *, is_scaled: bool) -> Readings:
        settings, step = self._settings, self._num_steps
        has_reflex = self._has_reflex and not is_scaled
        max_norm = self._restraint.max_norm if self._restraint.num_steps_left else 0.0
        is_clipping = self._shortener.is_adaptive or max_norm > 0.0
        is_due = (settings.norm or has_reflex) and step % plan.every == 0
        is_read = known_norm is None and (is_due or is_clipping)
        is_zeroed = has_reflex and not (plan.is_on_host or plan.is_fused)
        are_needed = is_read or is_clipping or is_zeroed
        gradients = real_gradients(plan, plan.parameters) if are_needed else []
        norm = known_norm
        if is_read and gradients:
            norm = total_norm(gradients, plan.dtype, is_gathered=plan.is_gathered)
        share = None
        if settings.zero_share_every and step % settings.zero_share_every == 0:
            parts = [part_of(one, plan.part_elements) for one in real_gradients(plan, plan.counted)]
            share = zero_share(parts, is_gathered=plan.is_gathered) if parts else None
        norm, share = _on_host_if_cheap(norm), _on_host_if_cheap(share)
        if is_clipping and gradients:
            self._shortener.shorten(gradients, norm, max_norm)
        is_left_out: Tensor | bool = False
        if has_reflex:
            is_left_out = self._reflex.leave_out(plan, gradients, norm, step)
            if is_left_out is True:
                norm = math.nan if norm is None else norm
        return Readings(norm if settings.norm else None, share, is_left_out, is_scaled)

    def _take_known(self, optimizer: Any, norm: Any, *, has_reflex: bool, is_scaled: bool) -> None:
        norm = _on_host_if_cheap(norm)
        is_left_out = self._reflex.leave_out_known(optimizer, norm) if has_reflex else False
        read = norm if self._settings.norm else None
        self._parts.append(Readings(read, None, is_left_out, is_scaled))

    def _count_down(self) -> None:
        left = self._restraint.num_steps_left - 1
        self._restraint = self._restraint._replace(num_steps_left=left)
        if not left:
            self._rates.remove()
            self._rates.factor = 1.0
            self._tell("Learning rates and gradients are as they were before clip_and_decay.")

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._tell(message)


def _on_host_if_cheap(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.device.type == "cpu" else value


def _joined(parts: list[Readings]) -> Readings:
    """What several optimizers of one step come to."""
    norms = [part.norm for part in parts if part.norm is not None]
    shares = [part.zero_share for part in parts if part.zero_share is not None]
    left_out = [part.is_left_out for part in parts if part.is_left_out is not False]
    return Readings(
        norm=sum(norm * norm for norm in norms) ** 0.5 if norms else None,
        zero_share=sum(shares) / len(shares) if shares else None,
        is_left_out=_any(left_out),
        is_scaled=any(part.is_scaled for part in parts),
    )


def _any(flags: Sequence[Tensor | bool]) -> Tensor | bool:
    tensors = [flag for flag in flags if isinstance(flag, Tensor)]
    if any(flag is True for flag in flags) or not tensors:
        return bool(flags)
    return torch.stack(tensors).amax()
