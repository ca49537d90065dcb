"""Copies on a real GPU: their digests, and micro-batches that are run twice. Skipped elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from slav1.contract import Contract
from slav1.replicas import Copy, Digester, Found, MicrobatchReplay, ReplicaWatch, Workspace
from slav1.replicas.hashing import bits_of
from slav1.session.messages import Digests
from slav1.testing._memory import flip_bit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; there is none"),
]

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8]


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Whatever waits for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _filled(shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape, generator=generator) * 50).to(kind).cuda()


def _layouts(kind: torch.dtype) -> dict[str, torch.Tensor]:
    return {
        "small": _filled((33,), kind),
        "read in place": _filled((600, 1410), kind),
        "turned round": _filled((64, 50), kind).t(),
        "with gaps": _filled((64, 50), kind)[::2, 1::3],
        "askew": _filled((5001,), kind)[1:],
    }


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_bit_counts(kind: torch.dtype) -> None:
    """
    One bit that flips on the device changes the digest in each turn, whatever its position,
    the type of the tensor and how it lies in memory; flipped back, the digest is what it was.
    """
    workspace = Workspace(torch.device("cuda"))
    workspace.in_place_bytes = 0
    for layout, tensor in _layouts(kind).items():
        digester = Digester([tensor], workspace)
        before = [digester.sums(turn).tolist() for turn in (0, 1)]
        for bit in range(8 * bits_of(tensor).element_size()):
            element = 7919 * (bit + 1) % tensor.numel()
            flip_bit(tensor, bit, element)
            for turn in (0, 1):
                assert digester.sums(turn).tolist() != before[turn], (layout, bit, element)
            flip_bit(tensor, bit, element)
        assert [digester.sums(turn).tolist() for turn in (0, 1)] == before


class Rank:
    """A rank that trains on the device and looks at its copies."""

    def __init__(self, number: int, *, is_ddp: bool) -> None:
        torch.manual_seed(0)
        self.is_ddp = is_ddp
        self.net = nn.Sequential(nn.Linear(700, 600), nn.ReLU(), nn.Linear(600, 3)).cuda()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, fused=True)
        self.said: list[Any] = []
        session: Any = SimpleNamespace(
            rank=number,
            contract=Contract.level("L1").override(replica_divergence={"every_steps": 4}),
            peers=SimpleNamespace(world_size=2),
            tell=self.said.append,
            note=pytest.fail,
        )
        self.watch = ReplicaWatch(session, self.find)
        self.watch.begin(-1)

    def find(self) -> Found:
        found = []
        for name, parameter in self.net.named_parameters():
            kinds = {"parameter": parameter, **self.optimizer.state[parameter]}
            found += [
                Copy(name=name, kind=kind, ranks=(0, 1), tensor=tensor)
                for kind, tensor in kinds.items()
                if tensor.dim()
            ]
        like_ddp = SimpleNamespace(require_backward_grad_sync=True, parameters=self.net.parameters)
        return Found(copies=found, wrappers=[like_ddp] if self.is_ddp else [])

    def step(self, number: int) -> None:
        generator = torch.Generator(device="cuda").manual_seed(number)
        batch = torch.randn(16, 700, device="cuda", generator=generator)
        with nothing_waits():
            loss = self.net(batch).square().mean()
            if self.watch.waiting:
                self.watch.begin_backward()
            loss.backward()
            self.watch.end_backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if number >= self.watch.due_step:
                self.watch.look(number)

    def looks(self) -> dict[int, Digests]:
        return {one.step: one for one in self.said if isinstance(one, Digests)}


@pytest.mark.parametrize("what", ["parameter", "exp_avg", "exp_avg_sq"])
def test_a_flipped_bit_is_found_without_waiting(what: str) -> None:
    """
    Two trainings that do the same hold the same at each look, whether it is made after the
    update or beside the next backward; once a bit of one has flipped the next look differs;
    neither planning a look nor making or sending it waits for the device.
    """
    here, there = Rank(0, is_ddp=False), Rank(1, is_ddp=True)
    for step in range(10):
        if step == 6:
            state = there.optimizer.state[there.net[2].weight]
            held = {"parameter": there.net[2].weight.detach(), **state}
            flip_bit(held[what], 20, 1234)
        here.step(step)
        there.step(step)
        assert bool(there.watch.waiting) is (step in (4, 8))
        torch.cuda.synchronize()

    mine, others = here.looks(), there.looks()
    assert list(mine) == list(others) == [0, 4, 8]
    assert mine[0].values == others[0].values
    assert mine[4].values == others[4].values
    assert mine[8].values != others[8].values
    assert mine[4].values != mine[8].values


def test_a_wrong_run_of_a_micro_batch_is_found() -> None:
    """
    Micro-batches with dropout repeat bit for bit on a device, since its generator is put
    back, and one run with a wrong number is found and told which.
    """
    torch.manual_seed(3)
    layers = [nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Dropout(0.5), nn.Linear(128, 1)]
    model = nn.Sequential(*layers).cuda()
    error = torch.zeros(16, 64, device="cuda")
    replay = MicrobatchReplay(model, ratio=1.0, tell=pytest.fail)
    done = []
    for step in range(6):
        inputs = torch.randn(16, 64, device="cuda")
        chosen = replay.begin(step)
        error[3, 5] = 0.25 if step == 4 else 0.0
        model(inputs + error).square().mean().backward()
        error.zero_()
        torch.rand(1, device="cuda")
        assert chosen
        done.append(replay.end(lambda inputs=inputs: model(inputs).square().mean()))
        model.zero_grad()

    assert replay.is_exact
    assert [bool(one and one.differing) for one in done] == [False] * 4 + [True, False]
    assert done[4] is not None and done[4].wrong == "first"
