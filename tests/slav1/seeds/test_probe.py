"""The determinism probe, and the comparison of a resumed run with an unbroken one."""

# ruff: noqa: NPY002 - the global generator of numpy is what a step may draw from

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slav1.seeds import check_resume, compare_traces, digests, probe_step, take


def setting() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], Any]]:
    """A model with dropout and running statistics, and a step that draws from everything."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    batch = torch.randn(6, 4)

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(batch + random.random() * np.random.rand()).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """All that a step changes, as text."""
    gradients = [p.grad for p in model.parameters()]
    return repr((model.state_dict(), optimizer.state_dict(), gradients, digests(take())))


@pytest.mark.parametrize("num_before", [0, 2])
def test_a_step_that_repeats_itself_is_told_and_leaves_no_trace(num_before):
    """
    A step that draws from three generators is found to repeat itself bit for bit, and weights,
    statistics, gradients, optimizer and generators are then as they were, before the first
    step as well as later.
    """
    torch.set_printoptions(precision=17)
    model, optimizer, step = setting()
    for _ in range(num_before):
        step()
    before = state(model, optimizer)

    probed = probe_step(step, [model], [optimizer])

    assert probed.is_deterministic and probed.differing == ()
    assert state(model, optimizer) == before


def test_what_differs_between_two_steps_is_named():
    """
    A step that draws from a generator that nobody restores is found, with the loss and each
    parameter that came out differently, and the state is put back all the same.
    """
    model, optimizer, step = setting()
    own = random.Random(0)
    before = state(model, optimizer)

    def loose() -> Any:
        step()
        with torch.no_grad():
            model[3].bias += own.random() * 1e-3
        return model[3].bias.sum()

    probed = probe_step(loose, [model], [optimizer])

    assert probed.differing == ("loss", "module 0: 3.bias")
    assert state(model, optimizer) == before


def test_a_step_that_fails_leaves_no_trace():
    """
    An exception in the step comes out, and the state is put back before it does.
    """
    model, optimizer, step = setting()
    before = state(model, optimizer)

    def broken() -> Any:
        step()
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        probe_step(broken, [model], [optimizer])
    assert state(model, optimizer) == before


def trainer(*, forgets: bool) -> Callable[[int, bool], dict[int, Any]]:
    """A training that saves each step; one that forgets does not save its generator."""
    saved: dict[str, Any] = {}

    def train(num_steps: int, resumes: bool) -> dict[int, Any]:
        generator, weight, first = random.Random(5), 1.0, 0
        if resumes:
            first, weight = saved["step"] + 1, saved["weight"]
            if not forgets:
                generator.setstate(saved["generator"])
        trace = {}
        for step in range(first, num_steps):
            weight -= 0.1 * weight * generator.random()
            trace[step] = {"loss": weight**2, "weight": torch.tensor([weight])}
            saved.update(step=step, weight=weight, generator=generator.getstate())
        return trace

    return train


def test_a_resume_that_forgets_something_is_found():
    """
    A run that restores all it needs equals the unbroken one in every step after the resume;
    one that forgets its generator differs from the first of them on.
    """
    good = check_resume(trainer(forgets=False), num_steps=9, stop_after=4)
    bad = check_resume(trainer(forgets=True), num_steps=9, stop_after=4)

    assert good.is_equal and good.num_compared == 5
    assert not bad.is_equal and min(bad.differing) == 4
    with pytest.raises(ValueError, match="stop_after must be 1 to 8, got 9"):
        check_resume(trainer(forgets=False), num_steps=9, stop_after=9)


def test_traces_are_compared_by_bits():
    """
    A NaN equals itself, a zero's sign counts, steps that one run left out differ, and nothing
    in common is no proof.
    """
    nan = float("nan")

    assert compare_traces({0: nan, 1: [1.0]}, {1: [1.0]}).is_equal
    assert compare_traces({0: nan}, {0: float("nan")}).is_equal
    assert compare_traces({0: 0.0}, {0: -0.0}).differing == {0: "0.0 became -0.0"}
    assert set(compare_traces({1: 1.0, 2: 1.0, 3: 1.0}, {1: 1.0, 3: 1.0, 4: 1.0}).differing) == {
        2,
        4,
    }
    assert not compare_traces({0: 1.0}, {}).is_equal
