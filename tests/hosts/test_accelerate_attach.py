"""``attach``: what it makes of an accelerator that exists, in one process without a monitor."""

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import PartialState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sla_accelerate import SLAAccelerator, TrainingStoppedError, _runs, attach
from sla_accelerate._place import words_of_launcher
from slav1.decision import Action
from slav1.recorder.layout import Word
from slav1.recorder.ring import read_ring_file

from ._counting import UNWATCHED, start_afresh


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate shares its state among all objects of a process; so do we."""
    yield
    start_afresh()


class Own(Accelerator):
    """A class of the user's: counts its calls and keeps a file of its own in checkpoints."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.calls: list[str] = []

    def backward(self, loss: Any, **options: Any) -> None:
        self.calls.append("backward")
        super().backward(loss, **options)

    def save_state(self, output_dir: Any = None, **options: Any) -> Any:
        self.calls.append("save_state")
        made = super().save_state(output_dir, **options)
        (Path(output_dir) / "own.txt").write_text("mine")
        return made


def objects() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    """What a loop trains with: six batches of one."""
    model = nn.Linear(2, 1)
    items = TensorDataset(torch.arange(12.0).reshape(6, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(items, shuffle=True)


def epoch(accelerator: Any, model: Any, optimizer: Any, loader: Any) -> Iterator[int]:
    """Trains an epoch; yields after each step."""
    for number, (batch,) in enumerate(loader):
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        yield number


def steps(accelerator: Any) -> list[int]:
    """Ends the training; the steps that were recorded."""
    folder = accelerator.sla_run_folder
    accelerator.end_training()
    return [sample.step for sample in read_ring_file(folder / "ring-0.bin")]


@pytest.fixture
def attached(tmp_path: Path) -> Callable[..., Any]:
    """Attaches; settings as for :func:`attach`."""

    def make(accelerator: Any, **settings: Any) -> Any:
        return attach(accelerator, UNWATCHED, str(tmp_path / "runs"), **settings)

    return make


@pytest.mark.smoke
@pytest.mark.parametrize("host_class", [Accelerator, Own])
@pytest.mark.parametrize("is_prepared", [True, False], ids=["late", "early"])
def test_an_attached_accelerator_is_watched(attached, tmp_path, host_class, is_prepared):
    """
    Attached before or after everything is prepared, of the host's class or the user's: all
    steps are recorded with their batches, a save is proved, and the newest good checkpoint
    takes the loop back to its place.
    """
    accelerator = host_class(cpu=True)
    parts: Any = objects()
    if is_prepared:
        parts = accelerator.prepare(*parts)
    assert attached(accelerator) is accelerator
    if not is_prepared:
        assert accelerator.sla_run_folder is None
        parts = accelerator.prepare(*parts)

    for number in epoch(accelerator, *parts):
        if number == 2:
            saved = accelerator.save_state(str(tmp_path / "saved"))
            weight = parts[0].weight.clone()
    assert accelerator.load_state("last_good") == saved
    assert torch.equal(parts[0].weight, weight)
    rest = list(epoch(accelerator, *parts))

    assert (saved / "sla_state.json").is_file()
    assert len(rest) == 3
    assert steps(accelerator) == list(range(9))
    if host_class is Own:
        assert accelerator.calls.count("backward") == 9
        assert (saved / "own.txt").read_text() == "mine"


def test_an_attached_accelerator_stops(attached):
    """
    A decision of the contract ends the loop of an accelerator that was attached late.
    """
    accelerator = Accelerator(cpu=True)
    parts = accelerator.prepare(*objects())
    attached(accelerator)
    words = _runs.current().session._block.words
    words[Word.SCHEDULE_STEP], words[Word.ACTION] = 3, Action.STOP
    words[Word.SCHEDULED] = words[Word.HOLD] = 1

    with pytest.raises(TrainingStoppedError, match="end of step 3"):
        list(epoch(accelerator, *parts))

    assert accelerator.sla_stopped_at == 3


def test_what_is_attached_stays_what_it_was(attached):
    """
    Classes, names, copies and pickles are those of the user's class, and a copy is under the
    contract too.
    """
    plain = Own(cpu=True)
    shown = repr(plain).split(" at ")[0]
    accelerator = attached(plain)
    accelerator.prepare(*objects())

    for one in (accelerator, pickle.loads(pickle.dumps(accelerator)), copy.copy(accelerator)):
        assert isinstance(one, Own) and isinstance(one, SLAAccelerator)
        assert repr(one).split(" at ")[0] == shown
        assert one.calls == []
        assert one.sla_last_step == -1
    assert type(attached(Own(cpu=True))) is type(accelerator)
    assert isinstance(pickle.loads(pickle.dumps(SLAAccelerator(cpu=True))), SLAAccelerator)


def test_a_second_time_changes_nothing_or_is_refused(attached, tmp_path):
    """
    Attached again with the same settings nothing changes; with others the error names them,
    and so it does for an SLAAccelerator.
    """
    accelerator = attached(Accelerator(cpu=True))
    parts = accelerator.prepare(*objects())
    next(epoch(accelerator, *parts))

    assert attached(accelerator) is accelerator
    with pytest.raises(ValueError, match="with other on_stop, skips_bad_batches"):
        attached(accelerator, on_stop="flag", skip_bad_batches=False)
    with pytest.raises(ValueError, match="with other contract, run_dir: attach"):
        attach(SLAAccelerator(contract="L1", cpu=True), "L2", "elsewhere")

    assert steps(accelerator) == [0]


def test_what_can_not_be_attached_is_refused_and_untouched(attached):
    """
    Something that is no accelerator, or one whose methods were replaced on the object, is
    refused with the reason, and stays as it is.
    """
    accelerator = Accelerator(cpu=True)
    accelerator.backward = lambda loss: None

    with pytest.raises(TypeError, match="got Linear"):
        attached(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="can't see calls of backward"):
        attached(accelerator)
    whole = Accelerator(cpu=True)
    with pytest.raises(ValueError, match="L9"):
        attach(whole, "L9")

    assert type(accelerator) is type(whole) is Accelerator


def test_inference_joins_no_run(attached, tmp_path):
    """
    A model that is only looked at, with its loader, makes no run.
    """
    accelerator = attached(Accelerator(cpu=True))
    model, _, loader = objects()
    model, loader = accelerator.prepare(model, loader)
    model.eval()
    with torch.no_grad():
        seen = [accelerator.gather_for_metrics(model(batch)) for (batch,) in loader]
    accelerator.end_training()

    assert len(seen) == 6
    assert accelerator.sla_run_folder is None
    assert not (tmp_path / "runs").exists()


def test_a_launcher_is_heard_after_accelerate_is_set_up():
    """
    The number of ranks on a node that Accelerate makes up where the launcher said none is not
    taken for the launcher's word; one that the launcher did say is.
    """
    start_afresh()
    PartialState(cpu=True)

    assert words_of_launcher({"LOCAL_WORLD_SIZE": "1", "RANK": "1"}, is_set_up=True) == {}
    assert words_of_launcher({"LOCAL_WORLD_SIZE": "1"}) == {"LOCAL_WORLD_SIZE": "1"}
    assert words_of_launcher({"LOCAL_WORLD_SIZE": "2"}, is_set_up=True)
