"""Which tensors are taken for copies; how models are wrapped is tested on real ranks."""

from typing import Any

import torch
from torch import nn

from slav1.replicas import find_copies


class Engine(nn.Module):
    """What is looked at of a DeepSpeed engine."""

    seq_data_parallel_group = data_parallel_group = None

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.stage = stage
        self.module = nn.Linear(2, 2)
        expert: Any = nn.Parameter(torch.zeros(2))
        expert.allreduce = False
        self.module.expert = expert

    def zero_optimization_stage(self) -> int:
        return self.stage


def test_deepspeed_keeps_copies_of_the_weights_up_to_stage_2(monkeypatch: Any) -> None:
    """
    Of DeepSpeed's stages 1 and 2 the model's parameters are copies, but for experts; of
    stage 3 nothing is, and that is said.
    """
    monkeypatch.setattr("slav1.replicas.find._members", lambda group: (0, 1))

    second, third = find_copies([Engine(2)], []), find_copies([Engine(3)], [])

    assert [one.name for one in second.copies] == ["weight", "bias"]
    assert third.copies == []
    assert all(one.is_trained for one in second.copies)
    assert third.left_out == ["ZeRO stage 3 keeps no copy of a parameter"]


def test_what_is_known_is_current_until_an_optimizer_keeps_something_else(
    monkeypatch: Any,
) -> None:
    """
    What was found is out of date once an optimizer keeps more, or has been loaded.
    """
    monkeypatch.setattr("slav1.replicas.find._members", lambda group: (0, 1))
    engine = Engine(2)
    optimizer = torch.optim.Adam(engine.parameters())
    before = find_copies([engine], [optimizer])
    assert before.is_current()

    engine.module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not before.is_current()
    after = find_copies([engine], [optimizer])
    assert {one.kind for one in after.copies} == {"parameter", "exp_avg", "exp_avg_sq"}

    optimizer.load_state_dict(optimizer.state_dict())
    assert not after.is_current()


def test_what_no_optimizer_updates_is_told_apart(monkeypatch: Any) -> None:
    """
    A frozen parameter, and one that no optimizer was given, may be changed by anybody.
    """
    monkeypatch.setattr(
        "slav1.replicas.find._ranks_by_wrapper",
        lambda model, found: {id(one): (0, 1) for one in model.parameters()},
    )
    model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("net", "ema", "out")})
    model["ema"].requires_grad_(False)
    optimizer = torch.optim.SGD([*model["net"].parameters(), *model["ema"].parameters()])

    found = find_copies([model], [optimizer])

    assert {one.name: one.is_trained for one in found.copies} == {
        "net.weight": True,
        "ema.weight": False,
        "out.weight": False,
    }


class SharedOut(torch.optim.SGD):
    """Updates every second parameter on this rank, and leaves the others to another one."""

    def __init__(self, parameters: Any, rank: int) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.rank = rank

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"][self.rank :: 2]:
            self.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)


def test_what_an_optimizer_keeps_for_a_part_on_each_rank_is_left_out(monkeypatch: Any) -> None:
    """
    Where ranks share the update out among them, each keeps state for its own part: parameters
    are compared all the same, which they could not be beside state that the others lack.
    """
    monkeypatch.setattr("slav1.replicas.find._members", lambda group: (0, 1))
    found = []
    for rank in (0, 1):
        engine = Engine(2)
        optimizer = SharedOut(engine.module.parameters(), rank)
        optimizer.step()
        found.append(find_copies([engine], [optimizer]))

    told = [[(one.name, one.kind) for one in each.copies] for each in found]
    assert told[0] == told[1] == [("weight", "parameter"), ("bias", "parameter")]
    assert "SharedOut keeps something for a part of its parameters only" in found[0].left_out[-1]
