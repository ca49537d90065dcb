"""Checkpoints of an ``SLAAccelerator``: with the contract and without, in both directions."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import ProjectConfiguration
from torch import nn

from sla_accelerate import SLAAccelerator, _runs, _side_file
from slav1.contract import Contract
from slav1.recorder.ring import read_ring_file

UNWATCHED = Contract.level("L1").override(monitor={"kind": "off"})
WATCHED = Contract.level("L1").override(monitor={"kind": "thread"})


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate shares its state among all objects of a process; so do we."""
    yield
    start_afresh()


def start_afresh() -> None:
    """As in a new process."""
    _runs.end(None)
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()


def prepared(accelerator: Accelerator) -> tuple[nn.Linear, Callable[[], None]]:
    """A model whose weight counts its steps, and what makes one step."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))

    def step() -> None:
        accelerator.backward(-model(torch.ones(1, 1)).sum())
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def trained(accelerator: Accelerator, *, num_steps: int, load: Path | None = None) -> nn.Linear:
    """Trains such a model, after loading if asked."""
    model, step = prepared(accelerator)
    if load is not None:
        accelerator.load_state(load)
    for _ in range(num_steps):
        step()
    return model


def with_contract(folder: Path, contract: Contract = UNWATCHED, **settings: Any) -> SLAAccelerator:
    """An accelerator under contract."""
    return SLAAccelerator(contract=contract, run_dir=str(folder / "runs"), cpu=True, **settings)


@pytest.mark.smoke
@pytest.mark.parametrize("resumed_with", [True, False])
@pytest.mark.parametrize("saved_with", [True, False])
def test_the_contract_can_come_and_go_between_save_and_resume(tmp_path, saved_with, resumed_with):
    """
    All four combinations of saved and resumed with and without the contract load, and
    training goes on from the saved weights; the host sees no object of ours in between.
    """
    first = with_contract(tmp_path) if saved_with else Accelerator(cpu=True)
    trained(first, num_steps=3)
    first.save_state(tmp_path / "saved")
    start_afresh()

    second = with_contract(tmp_path) if resumed_with else Accelerator(cpu=True)
    model = trained(second, num_steps=2, load=tmp_path / "saved")

    assert model.weight.item() == 5.0
    assert not list((tmp_path / "saved").glob("custom_checkpoint*"))


def test_steps_are_counted_on(tmp_path):
    """
    A resumed training goes on with the number of the next step; one that is rolled back
    in the same process does not count any step twice.
    """
    first = with_contract(tmp_path)
    trained(first, num_steps=3)
    first.save_state(tmp_path / "saved")
    start_afresh()

    second = with_contract(tmp_path)
    model, step = prepared(second)
    second.load_state(tmp_path / "saved")
    for _ in range(2):
        step()
    second.load_state(tmp_path / "saved")
    step()
    assert model.weight.item() == 4.0
    folder = second.sla_run_folder
    second.end_training()

    assert [s.step for s in read_ring_file(folder / "ring-0.bin")] == [3, 4, 5]


def test_an_old_checkpoint_starts_with_empty_windows_and_says_so(tmp_path, caplog):
    """
    A checkpoint made without the contract loads with one line that says what is missing.
    """
    plain = Accelerator(cpu=True)
    trained(plain, num_steps=1)
    plain.save_state(tmp_path / "saved")
    start_afresh()

    with caplog.at_level(logging.WARNING, logger="sla_accelerate"):
        trained(with_contract(tmp_path), num_steps=1, load=tmp_path / "saved")

    assert [r.message for r in caplog.records if "empty windows" in r.message]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"version": 99, "step": 7, "detectors": null}', "version 99"),
        ("{", "can't be read"),
        ("[]", "can't be read"),
    ],
)
def test_a_state_of_a_later_version_or_a_damaged_one_is_left_alone(
    tmp_path, caplog, content, reason
):
    """
    What can't be understood is ignored with a warning, and the checkpoint loads.
    """
    first = with_contract(tmp_path)
    trained(first, num_steps=3)
    first.save_state(tmp_path / "saved")
    start_afresh()
    (tmp_path / "saved" / _side_file.NAME).write_text(content)
    # With the manifest it would be a damaged checkpoint.
    (tmp_path / "saved" / "sla_manifest.json").unlink()

    with caplog.at_level(logging.WARNING, logger="sla_accelerate"):
        model = trained(with_contract(tmp_path), num_steps=1, load=tmp_path / "saved")

    assert model.weight.item() == 4.0
    assert [r.message for r in caplog.records if reason in r.message]
    assert _runs.current().step == 0


def test_detectors_go_on_from_their_memories(tmp_path):
    """
    The memories that lie beside a checkpoint are those the detectors have after loading it.
    """
    first = with_contract(tmp_path, WATCHED)
    trained(first, num_steps=80)
    first.save_state(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / _side_file.NAME).read_text())
    start_afresh()

    second = with_contract(tmp_path, WATCHED)
    trained(second, num_steps=0, load=tmp_path / "saved")
    again = _runs.current().session.ask_state()
    second.end_training()

    assert saved["step"] == 79
    assert saved["detectors"]
    assert json.loads(json.dumps(again)) == saved["detectors"]


def test_the_hosts_own_numbering_works(tmp_path):
    """
    With automatic naming the state lies in the folder that the host chose, and is read
    from the newest one.
    """
    naming = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True)
    first = with_contract(tmp_path, project_config=naming)
    model, step = prepared(first)
    for _ in range(2):
        step()
        first.save_state()
    step()

    first.load_state()

    folders = sorted((tmp_path / "checkpoints").iterdir())
    steps = [json.loads((folder / _side_file.NAME).read_text())["step"] for folder in folders]
    assert steps == [0, 1]
    assert model.weight.item() == 2.0
