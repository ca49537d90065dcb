"""Which gradients are looked at, and how often, so that looking costs next to nothing."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from slav1.gradients.readings import norm_dtype

BUDGET_US = {"cpu": 15.0, "cuda": 10.0}
"""What reading norms may cost by kind of device, in microseconds a step there."""

# A processor's step takes 2 us a thousand elements and more, of which this is half a percent.
_ADDED_BUDGET_US = 1e-5
# What a norm was measured to cost on a processor: a call, a tensor, an element.
_CALL_US, _TENSOR_US, _ELEMENT_US = 10.0, 2.0, 1 / 2000
# Up to so many elements it costs less to copy them together than to call for each tensor.
_GATHERED_ELEMENTS = 1 << 18
# The same on a device: all launches together, and bytes that it reads in a microsecond.
_LAUNCHES_US, _BYTES_A_US = 20.0, 3e6
# Gradients that are looked at for NaN in turn while not all are, how many of them in one step,
# and their size. On a device two launches read dozens of them.
_NUM_PROBES = {"cpu": 16, "cuda": 32}
_PROBES_A_STEP = {"cpu": 2, "cuda": 32}
_PROBE_ELEMENTS = 4096
# Gradients of which zeros are counted, and how many elements of all.
_NUM_COUNTED = {"cpu": 8, "cuda": 32}
_COUNTED_ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 24}


class Plan(NamedTuple):
    """What is looked at of one optimizer's gradients. The same on all ranks of a run, since
    it follows from the shapes alone."""

    optimizer: "ref[Any]"
    parameters: list[Tensor]
    """Those that are trained."""
    num_groups: int
    """Groups of parameters that the optimizer has."""
    is_on_host: bool
    every: int
    """Steps between two readings of the norm; 1 for each step."""
    probes: list[list[Tensor]]
    """Parameters whose gradients are looked at, step by step in turn."""
    counted: list[Tensor]
    """Parameters of whose gradients the zeros are counted."""
    part_elements: int
    """Most elements of each in which they are."""
    dtype: torch.dtype | None
    """In which type norms are computed; None for that of the gradients."""
    is_gathered: bool
    """Whether gradients are copied together before they are read."""
    has_complex: bool
    """Whether some are complex, whose gradients are read as pairs of real numbers."""
    is_fused: bool
    """Whether the update itself can be told on the device to do nothing."""


def plan_for(optimizer: Any, *, norm_every: int) -> Plan | str:
    """Plans what is looked at, when the first gradients are there.

    Args:
        optimizer: About to make a step.
        norm_every: Steps between two norms; 0 chooses.

    Returns:
        The plan; or why these gradients can't be read, as the end of a sentence.
    """
    if why := why_unread(optimizer):
        return why
    given = [one for group in optimizer.param_groups for one in group["params"]]
    # What DDP leaves alone has another gradient on each rank: a norm with it would part them.
    shared = [one for one in given if not getattr(one, "_ddp_ignored", False)]
    parameters = [one for one in shared if one.requires_grad]
    gradients = gradients_of(parameters)
    if any(hasattr(one, "to_local") for one in (*parameters, *gradients)):
        return "they are spread over ranks"
    if any(gradient.layout is not torch.strided for gradient in gradients):
        return "some are sparse"
    devices = {parameter.device for parameter in parameters}
    if len(devices) > 1 or any(device.type not in _COUNTED_ELEMENTS for device in devices):
        return f"they lie on {', '.join(sorted(map(str, devices)))}"
    kind = next(iter(devices)).type if devices else "cpu"
    counted = _spread(parameters, _NUM_COUNTED[kind])
    every = norm_every or _steps_between_norms(parameters, kind)
    is_small = sum(parameter.numel() for parameter in parameters) <= _GATHERED_ELEMENTS
    return Plan(
        optimizer=ref(optimizer),
        parameters=parameters,
        num_groups=len(optimizer.param_groups),
        is_on_host=kind == "cpu",
        every=every,
        probes=_probes(parameters, _NUM_PROBES[kind], _PROBES_A_STEP[kind], every=every),
        counted=counted,
        part_elements=_COUNTED_ELEMENTS[kind] // max(1, len(counted)),
        dtype=norm_dtype(parameters),
        is_gathered=kind == "cpu" and is_small,
        has_complex=any(one.is_complex() for one in parameters),
        is_fused=all(group.get("fused") for group in optimizer.param_groups),
    )


def why_unread(optimizer: Any) -> str:
    """Why the gradients of this optimizer can't be read, as for :func:`plan_for`; empty if its
    kind does not speak against it."""
    if not isinstance(optimizer, Optimizer):
        return "the optimizer is none of torch's"
    if isinstance(optimizer, LBFGS):
        return "LBFGS asks for several gradients a step"
    return ""


def gradients_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradients that are there now."""
    return [gradient for one in parameters if (gradient := one.grad) is not None]


def real_gradients(plan: Plan, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The same of some of a plan's parameters; complex ones as the real numbers they lie as."""
    gradients = gradients_of(parameters)
    if not plan.has_complex:
        return gradients
    return [torch.view_as_real(one) if one.is_complex() else one for one in gradients]


def gradients_here(parameters: Sequence[Tensor]) -> list[Tensor]:
    """What this rank holds of them, where it lies; those that are spread over ranks too."""
    held: list[Any] = gradients_of(parameters)
    return [one.to_local() if hasattr(one, "to_local") else one for one in held]


def _steps_between_norms(parameters: list[Tensor], kind: str) -> int:
    """So many that norms cost what they may."""
    num_elements = sum(parameter.numel() for parameter in parameters)
    if kind != "cpu":
        num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        return math.ceil((_LAUNCHES_US + num_bytes / _BYTES_A_US) / BUDGET_US[kind])
    cost_us = _CALL_US + _TENSOR_US * len(parameters) + _ELEMENT_US * num_elements
    return math.ceil(cost_us / (BUDGET_US[kind] + _ADDED_BUDGET_US * num_elements))


def _probes(
    parameters: list[Tensor], num: int, num_a_step: int, *, every: int
) -> list[list[Tensor]]:
    """Small ones, spread over the model, for each of several steps; the first is in each.

    It is the last that a backward comes to: what goes wrong on the way mostly arrives there.
    """
    small = [one for one in parameters if one.numel() <= _PROBE_ELEMENTS]
    if not small:
        return [sorted(parameters, key=lambda one: one.numel())[:2]]
    chosen = _spread(small, num)
    if len(chosen) <= num_a_step:
        return [chosen]
    # From the other end on, since that is where a loss begins.
    turns = _parts(chosen[:0:-1], num_a_step - 1)
    # Where all are read before it was everyone's turn, turns are not worth their time.
    return [[chosen[0], *more] for more in turns] if every > len(turns) else [chosen[:1]]


def _parts(parameters: list[Tensor], num: int) -> list[list[Tensor]]:
    return [parameters[i : i + num] for i in range(0, len(parameters), num)]


def _spread(parameters: list[Tensor], num: int) -> list[Tensor]:
    if len(parameters) <= num:
        return parameters
    last = len(parameters) - 1
    return [parameters[round(i * last / (num - 1))] for i in range(num)]
