"""Gradients on a real GPU. Skipped elsewhere."""

import math
from typing import Any

import pytest
import torch

from slav1.contract.settings import GradientSettings
from slav1.gradients import GradientWatch
from slav1.recorder import Block, Recorder
from slav1.recorder.ring import RingReader
from slav1.torch_signals import LossReader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; there is none"),
]


@pytest.mark.parametrize("norm_every", [1, 0])
@pytest.mark.parametrize("is_fused", [True, False])
def test_nothing_waits_and_nothing_bad_gets_through(is_fused: bool, norm_every: int) -> None:
    """
    Norms come a step late and are right, in each step or in those that are chosen, no call
    waits for the device, and after a NaN the weights are finite; with a fused update they are
    those from before it.
    """
    block = Block.create(rank=0, num_slots=64)
    recorder = Recorder(block)
    parameters = [torch.nn.Parameter(torch.ones(1000, device="cuda")) for _ in range(50)]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, fused=is_fused)
    settings = GradientSettings(zero_share_every=1, norm_every=norm_every)
    watch = GradientWatch(settings, has_reflex=True, tell=pytest.fail)
    reader = LossReader(recorder, watch.heard)
    kept: list[Any] = []
    for number, value in enumerate([1.0, 2.0, math.nan, 1.0]):
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, value)
            # Half of them are 0 in one step.
            parameter.grad[::2] *= number != 1
        kept.append(parameters[0].detach().clone())
        torch.cuda.set_sync_debug_mode("error")
        try:
            watch.before_update(optimizer, are_whole=True)
            optimizer.step()
            reader.add(torch.ones((), device="cuda"))
            reader.end_step(number, scale=1, batch=number, flags=0, gradient=watch.take())
        finally:
            torch.cuda.set_sync_debug_mode("default")
    reader.drain()

    samples = list(RingReader(block.words, block.records).new_samples())
    size = math.sqrt(50_000)
    assert [sample.is_update_left_out for sample in samples] == [False, False, True, False]
    assert samples[0].grad_norm == pytest.approx(size)
    assert samples[1].grad_norm == (pytest.approx(2 * size / math.sqrt(2)) if norm_every else None)
    assert [sample.zero_share for sample in samples[:2]] == [0.0, 0.5]
    assert all(parameter.isfinite().all() for parameter in parameters)
    if is_fused:
        assert torch.equal(kept[2], kept[3])
    block.close()
