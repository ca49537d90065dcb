"""Random numbers of a real GPU: recorded, compared, put back. Skipped elsewhere."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from slav1.seeds import digests, probe_step, put_back, seed_all, take

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; there is none"),
]


def _drawn() -> torch.Tensor:
    return torch.nn.functional.dropout(torch.ones(1000, device="cuda"), 0.5)


def test_the_device_draws_the_same_again() -> None:
    """
    A state that was taken, and has been through a checkpoint, lets the device draw the same
    numbers again; its digest tells whether a device will.
    """
    seed_all(7)
    _drawn()
    state = take()
    first, others = _drawn(), take()
    put_back(copy.deepcopy(state))

    assert digests(take()) == digests(state)
    assert torch.equal(_drawn(), first)
    assert digests(take()) == digests(others)
    apart = {name for name, digest in digests(state).items() if digests(others)[name] != digest}
    assert apart == {"cuda"}


def test_one_seed_sets_the_device_too() -> None:
    """
    The same seed gives the same numbers on the device, another seed others.
    """
    drawn: list[Any] = []
    for seed in (1, 1, 2):
        seed_all(seed)
        drawn.append(_drawn())

    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("is_exact", [True, False])
def test_the_probe_sees_whether_a_device_repeats_itself(is_exact: bool) -> None:
    """
    A step with dropout that repeats bit for bit on a device is told so; one that adds up in
    whatever order its threads come is told with what differs.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    batch = torch.randn(4096, 64, device="cuda")
    places = torch.zeros(1 << 22, dtype=torch.int64, device="cuda")
    parts = torch.randn(1 << 22, device="cuda")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        if not is_exact:
            loss = loss + torch.zeros(1, device="cuda").index_add(0, places, parts).sum()
        loss.backward()
        optimizer.step()
        return loss

    probed = probe_step(step, [model], [optimizer])

    assert probed.is_deterministic is is_exact
    assert is_exact or "loss" in probed.differing
