"""What an engine of DeepSpeed made of a step, told by its own counters and its norm."""

import math
from types import SimpleNamespace

import pytest
import torch

from slav1.contract.settings import GradientSettings
from slav1.gradients import EngineUpdates, GradientWatch


class Engine:
    """Counts as DeepSpeed's does, around a real optimizer of torch's."""

    def __init__(self, *, is_fp16: bool = False) -> None:
        self.global_steps = self.skipped_steps = 0
        self.weight = torch.nn.Parameter(torch.ones(3))
        inner = torch.optim.AdamW([self.weight], lr=0.1)
        self.optimizer = SimpleNamespace(optimizer=inner, _global_grad_norm=0.0)
        self.is_fp16 = is_fp16

    def fp16_enabled(self) -> bool:
        return self.is_fp16

    def get_global_grad_norm(self) -> float:
        return self.optimizer._global_grad_norm

    def step(self, norm: float, *, skips: bool = False) -> None:
        """One update; one that it skips itself if it notices."""
        self.global_steps += 1
        self.skipped_steps += skips
        self.optimizer._global_grad_norm = norm
        if not skips:
            self.weight.grad = torch.full_like(self.weight, norm)
            self.optimizer.optimizer.step()


def watch() -> GradientWatch:
    """One that is told of updates, as a hand-written loop's is."""
    settings = GradientSettings(decay=0.25, decay_steps=2)
    return GradientWatch(settings, has_reflex=False, tell=lambda _: None, is_told_of_updates=True)


@pytest.mark.parametrize("is_fp16", [True, False])
def test_a_skip_is_a_step_unless_a_scaler_does_it(is_fp16: bool) -> None:
    """
    Where an engine skips an update itself it has made a step that left its update out; where it
    scales losses it skips in healthy runs, and has made none.
    """
    engine = Engine(is_fp16=is_fp16)
    updates = EngineUpdates(engine, watch(), has_reflex=True)

    assert updates.look() is None
    engine.step(2.0)
    made = updates.look()
    assert made is not None and (made.norm, made.is_left_out) == (2.0, False)
    engine.step(math.inf, skips=True)
    skipped = updates.look()
    assert skipped is None if is_fp16 else skipped is not None and skipped.is_left_out is True
    engine.step(-1.0)
    made = updates.look()
    assert made is not None and (made.norm, made.is_left_out) == (None, False)
    updates.close()


@pytest.mark.parametrize("has_reflex", [True, False])
def test_an_engine_that_goes_on_with_a_bad_norm_updates_nothing(has_reflex: bool) -> None:
    """
    The update is left out, moments and count of steps included, if that is wanted, and no longer
    once the watch is closed.
    """
    engine = Engine()
    updates = EngineUpdates(engine, watch(), has_reflex=has_reflex)
    engine.step(1.0)
    updates.look()
    before, state = engine.weight.detach().clone(), engine.optimizer.optimizer.state[engine.weight]

    engine.step(math.nan)

    made = updates.look()
    assert made is not None and made.is_left_out is has_reflex
    assert torch.equal(engine.weight, before) is has_reflex
    assert state["step"].item() == (1 if has_reflex else 2)
    updates.close()
    engine.step(math.nan)
    assert not engine.weight.isfinite().any()


def test_an_engine_s_updates_see_the_lower_rate() -> None:
    """
    For as many steps as ordered the optimizer underneath updates with the lower rate, and nobody
    else sees it.
    """
    engine, gradients = Engine(), watch()
    inner = engine.optimizer.optimizer
    used: list[float] = []
    updates = EngineUpdates(engine, gradients, has_reflex=True)
    inner.register_step_pre_hook(lambda one, *_: used.append(one.param_groups[0]["lr"]))

    gradients.restrain(0.0, [])
    for _ in range(3):
        engine.step(1.0)
        assert inner.param_groups[0]["lr"] == 0.1
        gradients.take()

    assert used == pytest.approx([0.025, 0.025, 0.1])
    updates.close()
