"""What the host offers besides a training loop works as ever beside the contract."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from _launch import free_port
from accelerate import (
    Accelerator,
    cpu_offload,
    dispatch_model,
    init_empty_weights,
    load_checkpoint_and_dispatch,
)
from torch import nn
from torch.utils.data import DataLoader

from sla_accelerate import SLAAccelerator

from ._counting import start_afresh, with_contract
from ._runs import messages

SCRIPT = Path(__file__).parent / "_scripts" / "notebook.py"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate shares its state among all objects of a process; so do we."""
    yield
    start_afresh()


def big() -> nn.Sequential:
    """A model of two parts."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def answers(accelerator: Accelerator, model: nn.Module) -> list[torch.Tensor]:
    """What the model says to a prepared loader's batches."""
    loader = accelerator.prepare(DataLoader(torch.arange(24.0).reshape(6, 4), batch_size=2))
    model.eval()
    with torch.no_grad():
        return [accelerator.gather_for_metrics(model(batch)) for batch in loader]


@pytest.mark.parametrize("how", ["dispatched", "loaded", "offloaded", "prepared"])
def test_inference_with_big_models_is_the_host_s(tmp_path, how):
    """
    A model that is dispatched, loaded onto empty weights, or offloaded to memory answers as it
    does without the contract; it gets no hook of ours, and makes no run.
    """
    torch.manual_seed(0)
    whole = big()
    expected = answers(Accelerator(cpu=True), whole)
    Accelerator(cpu=True).save_model(whole, tmp_path / "weights")
    start_afresh()
    accelerator = with_contract(tmp_path)

    if how == "loaded":
        with init_empty_weights():
            model = big()
        assert next(model.parameters()).is_meta
        places = {"": "cpu"}
        model = load_checkpoint_and_dispatch(model, tmp_path / "weights", device_map=places)
    elif how == "dispatched":
        places = {"0": "cpu", "1": "cpu", "2": "disk"}
        model = dispatch_model(
            whole, places, main_device="cpu", offload_dir=tmp_path, force_hooks=True
        )
        assert hasattr(model[2], "_hf_hook")
    elif how == "offloaded":
        model = cpu_offload(whole, execution_device=torch.device("cpu"))
    else:
        model = accelerator.prepare(whole)
    said = answers(accelerator, model)
    accelerator.end_training()

    assert all(torch.equal(a, b) for a, b in zip(said, expected, strict=True))
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
    assert accelerator.sla_run_folder is None
    assert not (tmp_path / "runs").exists()


def test_no_sync_is_one_step(tmp_path):
    """
    Backwards under no_sync belong to the step that ends after them.
    """
    accelerator = with_contract(tmp_path)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    for number in range(4):
        with accelerator.no_sync(model):
            accelerator.backward(model(torch.ones(1, 1)).sum() * 0.0 + number)
        accelerator.backward(model(torch.ones(1, 1)).sum() * 0.0 + number + 1)
        optimizer.step()
        optimizer.zero_grad()

    assert isinstance(accelerator, SLAAccelerator)
    assert accelerator.sla_last_step == 3


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_clipping_one_tensor_is_the_host_s(tmp_path):
    """
    What a host makes of a single tensor to clip, were it nothing at all, it makes with the
    contract too.
    """
    clipped = []
    for make in (lambda: Accelerator(cpu=True), lambda: with_contract(tmp_path)):
        accelerator = make()
        model = nn.Linear(4, 3)
        model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
        model.weight.grad = torch.ones(3, 4)
        norm = accelerator.clip_grad_norm_(model.weight, 0.5)
        clipped.append((float(norm), model.weight.grad.tolist()))

    assert clipped[0] == clipped[1]


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("launcher", ["notebook", "debug"])
def test_a_notebook_starts_its_ranks(launch, launcher):
    """
    Two ranks forked by notebook_launcher or debug_launcher train under one contract on one
    node, and leave it in good order.
    """
    ended = launch.command(
        *(str(SCRIPT), launcher, str(free_port())),
        env={"ACCELERATE_USE_CPU": "true", "SLA_RUN_DIR": str(launch.folder / "runs")},
    )

    assert ended.succeeded(), ended
    told = [json.loads(line) for line in ended.out[-1].splitlines() if line.startswith("{")]
    assert sorted(one["rank"] for one in told) == [0, 1]
    assert {(one["ranks"], one["last_step"]) for one in told} == {(2, 9)}
    assert messages(launch.folder / "runs", "start")[0].startswith("Watching 2 rank(s) on 1 node")
    assert messages(launch.folder / "runs", "end") == ["Training ended."]
