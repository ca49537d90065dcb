"""What is done on a device without waiting for it, with tensors here in the device's place."""

import math
from typing import Any

import pytest
import torch

from slav1.gradients.clipping import ClipStats, adapted
from slav1.gradients.plan import Plan, gradients_of, plan_for
from slav1.gradients.readings import flag_unless_finite, keep_or_zero, part_of, total_norm
from slav1.gradients.reflex import Reflex


def plan_of(optimizer: torch.optim.Optimizer) -> Plan:
    """A plan that takes the gradients for those of a device."""
    plan = plan_for(optimizer, norm_every=1)
    assert isinstance(plan, Plan)
    return plan._replace(is_on_host=False)


def step(parameters: list[Any], optimizer: Any, reflex: Reflex, *values: float) -> torch.Tensor:
    """One update with gradients of these values; returns whether it was left out."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.full_like(parameter, value)
    plan = plan_of(optimizer)
    gradients = gradients_of(plan.parameters)
    is_left_out = reflex.leave_out(plan, gradients, total_norm(gradients, plan.dtype), 0)
    assert isinstance(is_left_out, torch.Tensor)
    optimizer.step()
    return is_left_out


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_fused_update_is_left_out_exactly(bad: float) -> None:
    """
    A fused optimizer leaves parameters, moments and its own count of steps as they were, and
    makes the next update like one that never saw the bad gradient; afterwards nothing is left
    on it.
    """
    ended = []
    for values in ([1.0, 2.0], [1.0, bad], [0.5, 0.25]), ([1.0, 2.0], [0.5, 0.25]):
        torch.manual_seed(4)
        parameters = [torch.nn.Parameter(torch.randn(5)) for _ in range(2)]
        optimizer = torch.optim.AdamW(parameters, lr=0.1, fused=True)
        reflex = Reflex()
        left_out = [step(parameters, optimizer, reflex, *each).item() for each in values]
        assert left_out == [0.0 if all(map(math.isfinite, each)) else 1.0 for each in values]
        reflex.close()
        assert not hasattr(optimizer, "found_inf")
        states = [optimizer.state[parameter] for parameter in parameters]
        ended.append([*parameters, *(value for state in states for value in state.values())])

    assert all(map(torch.equal, *ended))


def test_any_other_update_gets_zeros() -> None:
    """
    Where the update can't be told, a bad gradient becomes zero: plain descent makes no step,
    and momentum stays finite; a good one is untouched.
    """
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    reflex = Reflex()

    assert step(parameters, optimizer, reflex, math.nan, 1.0).item() == 1.0
    assert [parameter.tolist() for parameter in parameters] == [[1.0] * 3] * 2
    assert step(parameters, optimizer, reflex, 0.5, 0.25).item() == 0.0
    assert [parameter.tolist() for parameter in parameters] == [[0.5] * 3, [0.75] * 3]


@pytest.mark.parametrize(
    "kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_bits_are_kept_or_all_zero(kind: torch.dtype) -> None:
    """
    Whatever a gradient holds, NaN and infinities too, it is the same bits or nothing but 0.
    """
    values = [math.nan, math.inf, -math.inf, -0.0, 1.5, -2.0, 1e-7]
    kept, zeroed = torch.tensor(values, dtype=kind), torch.tensor(values, dtype=kind)
    before = kept.clone()

    keep_or_zero([kept], torch.tensor(0.0))
    keep_or_zero([zeroed], torch.tensor(1.0))

    assert torch.equal(kept.view(torch.uint8), before.view(torch.uint8))
    assert zeroed.tolist() == [0.0] * len(values)
    assert not zeroed.signbit().any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_few_gradients_tell_if_not_all_are_read(bad: float) -> None:
    """
    In a step whose norm is not read, something bad in one of the small gradients that are
    looked at leaves the update out all the same; large numbers do not.
    """
    parameters = [torch.nn.Parameter(torch.ones(3, dtype=torch.float16)) for _ in range(2)]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, fused=True)
    reflex = Reflex()
    told = []
    for value in (60000.0, bad):
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 60000.0)
        parameters[1].grad = torch.tensor([1.0, value, 1.0], dtype=torch.float16)
        told.append(reflex.leave_out(plan_of(optimizer), [], None, 0))

    assert [float(one) for one in told] == [0.0, 1.0]
    assert optimizer.found_inf is told[1]


def test_a_flag_is_one_or_zero() -> None:
    """
    Whatever is not finite gives 1.0, any number 0.0, as float32.
    """
    norms = [math.nan, math.inf, -math.inf, 0.0, 1.5, 3e38]

    flags = [flag_unless_finite(torch.tensor(norm)) for norm in norms]

    assert [flag.item() for flag in flags] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert {flag.dtype for flag in flags} == {torch.float32}


def test_a_part_lies_in_the_middle() -> None:
    """
    Of a gradient that lies in order so many elements are taken, of another so many rows, and
    none is copied; all of one that is small.
    """
    gradient = torch.arange(24.0).view(6, 4)

    assert part_of(gradient, 6).tolist() == [9.0, 10.0, 11.0, 12.0, 13.0, 14.0]
    assert part_of(gradient, 99).numel() == 24
    assert part_of(gradient.t(), 7).tolist() == [[1.0, 5.0, 9.0, 13.0, 17.0, 21.0]]
    assert part_of(gradient.t(), 7).data_ptr() == gradient[0, 1:].data_ptr()
    assert part_of(torch.ones(()), 1).tolist() == [1.0]


def test_a_device_learns_what_the_host_would() -> None:
    """
    Adaptive clipping gives the same factors with numbers and with tensors, and a norm that is
    not finite changes nothing.
    """
    generator = torch.Generator().manual_seed(9)
    norms = (1.0 + 0.1 * torch.randn(60, generator=generator)).abs().tolist()
    norms[40], norms[45], norms[50] = 8.0, math.nan, math.inf
    here, there = ClipStats(), ClipStats(*(torch.zeros((), dtype=torch.float64),) * 3)

    for norm in norms:
        before = here
        here, factor = adapted(here, norm, limit_sigmas=2.5, memory=0.97)
        tensor = torch.tensor(norm, dtype=torch.float64)
        there, other = adapted(there, tensor, limit_sigmas=2.5, memory=0.97)
        assert other.item() == pytest.approx(factor)
        assert math.isfinite(norm) or (here, factor) == (before, 1.0)

    assert [number.item() for number in there] == pytest.approx(list(here))
    assert here.mean == pytest.approx(1.0, abs=0.1)
