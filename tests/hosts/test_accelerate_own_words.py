"""What a loop says by itself, and what is said to its trackers: ``sla_step``, ``log``."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sla_accelerate import SLAAccelerator, TrainingStoppedError, _runs, attach
from slav1.decision import Action
from slav1.recorder.layout import Word
from slav1.recorder.ring import read_ring_file
from slav1.sample import Sample
from slav1.testing import inject

from ._counting import start_afresh, with_contract


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate shares its state among all objects of a process; so do we."""
    yield
    start_afresh()


class Tracker(GeneralTracker):
    """A tracker of the user's own: keeps what it is given."""

    name = "own"
    requires_logging_directory = False
    tracker = None

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[dict[str, Any], int | None]] = []

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.seen.clear()

    def log(self, values: dict[str, Any], step: int | None = None, **options: Any) -> None:
        self.seen.append((values, step))


class Raw:
    """A loop with a raw optimizer, which Accelerate never sees."""

    def __init__(self, accelerator: SLAAccelerator, *, with_loader: bool = True) -> None:
        self.accelerator = accelerator
        self.model = nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.loader = DataLoader(TensorDataset(torch.ones(6, 1)), batch_size=1)
        if with_loader:
            self.loader = accelerator.prepare(self.loader)

    def run(self) -> Iterator[Tensor]:
        """Trains an epoch; yields each step's loss before the step is said to be over."""
        for number, (batch,) in enumerate(self.loader):
            loss = self.model(batch).sum() * 0.0 + float(number)
            loss.backward()
            self.optimizer.step()
            yield loss


def prepared(accelerator: Accelerator) -> tuple[Any, Callable[[float], None]]:
    """A prepared loader, and what makes one step of a prepared optimizer."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = DataLoader(TensorDataset(torch.ones(6, 1)), batch_size=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    def step(loss: float) -> None:
        accelerator.backward(model(torch.ones(1, 1)).sum() * 0.0 + loss)
        optimizer.step()

    return loader, step


def samples(accelerator: SLAAccelerator) -> list[Sample]:
    """Ends the training; the steps that were recorded."""
    folder = accelerator.sla_run_folder
    accelerator.end_training()
    return read_ring_file(folder / "ring-0.bin")


def order(action: Action, *, at_step: int, onset: int = -1) -> None:
    """Writes a decision into the block, as the monitor does."""
    words = _runs.current().session._block.words
    words[Word.SCHEDULE_STEP], words[Word.ACTION] = at_step, action
    words[Word.ONSET_STEP], words[Word.ALARM_STEP] = onset, onset
    words[Word.SCHEDULED] = words[Word.HOLD] = 1


@pytest.mark.smoke
@pytest.mark.parametrize("with_loader", [True, False])
@pytest.mark.parametrize("kind", [torch.Tensor, float])
def test_a_loop_that_can_not_be_seen_says_its_steps(tmp_path, with_loader, kind):
    """
    With a raw optimizer the steps that the loop says are recorded with their loss, a tensor
    or a number, and with their batch where the loader is known.
    """
    accelerator = with_contract(tmp_path)
    for loss in Raw(accelerator, with_loader=with_loader).run():
        accelerator.sla_step(loss if kind is torch.Tensor else loss.item())

    steps = samples(accelerator)

    assert [(s.step, s.loss) for s in steps] == [(n, float(n)) for n in range(6)]
    assert [s.batch for s in steps] == [n if with_loader else None for n in range(6)]
    assert all(s.step_time_s > 0 for s in steps[1:])


def test_a_step_that_was_seen_does_not_count_twice(tmp_path):
    """
    In a loop with prepared optimizers saying the steps changes neither their number nor
    their losses: with one optimizer, with accumulation, and with two optimizers.
    """
    accelerator = with_contract(tmp_path, gradient_accumulation_steps=2)
    loader, step = prepared(accelerator)
    for number, _ in enumerate(loader):
        with accelerator.accumulate():
            step(float(number))
        if accelerator.sync_gradients:
            accelerator.sla_step(99.0)
    assert [s.loss for s in samples(accelerator)] == [0.5, 2.5, 4.5]

    start_afresh()
    accelerator = with_contract(tmp_path)
    loader, step = prepared(accelerator)
    _, other_step = prepared(accelerator)
    for _ in loader:
        step(1.0)
        other_step(3.0)
        accelerator.sla_step(99.0)
    # By themselves two optimizers make their first step in their second iteration.
    assert [s.loss for s in samples(accelerator)] == [2.0] * 6


def test_a_step_that_is_said_can_be_one_of_a_loop_with_backward(tmp_path):
    """
    Where the losses went through backward and only the update is unseen, they are the
    step's losses.
    """
    accelerator = with_contract(tmp_path)
    raw = Raw(accelerator)
    for number, (batch,) in enumerate(raw.loader):
        for part in (0.0, 1.0):
            accelerator.backward(raw.model(batch).sum() * 0.0 + number + part)
        raw.optimizer.step()
        accelerator.sla_step(99.0)

    assert [s.loss for s in samples(accelerator)] == [n + 0.5 for n in range(6)]


def test_the_contract_acts_at_the_end_of_a_step_that_is_said(tmp_path):
    """
    A stop comes out of sla_step at its step, and out of the next one if the loop goes on; a
    planned fault changes the loss that is said; nothing ends inside of sla_phase.
    """
    with inject("nan", rank=0, step=1, what="loss"):
        accelerator = with_contract(tmp_path)
        steps = Raw(accelerator).run()
        for _ in range(2):
            accelerator.sla_step(next(steps))
    with accelerator.sla_phase("evaluation"):
        accelerator.sla_step(next(steps))
    order(Action.STOP, at_step=2)
    for _ in range(2):
        with pytest.raises(TrainingStoppedError, match="end of step 2"):
            accelerator.sla_step(next(steps))

    recorded = read_ring_file(accelerator.sla_run_folder / "ring-0.bin")
    assert [(s.step, s.non_finite) for s in recorded] == [(0, ()), (1, ("loss",)), (2, ())]


@pytest.mark.parametrize("is_registered", [True, False])
def test_what_makes_the_updates_must_be_known_to_go_back(tmp_path, caplog, is_registered):
    """
    A rollback stops a loop whose raw optimizer nobody can set back, and says so; registered
    for checkpointing, model and optimizer go back.
    """
    accelerator = with_contract(tmp_path)
    raw = Raw(accelerator)
    if is_registered:
        accelerator.register_for_checkpointing(raw.model, raw.optimizer)
    weights = []
    with contextlib.suppress(TrainingStoppedError):
        for loss in raw.run():
            accelerator.sla_step(loss)
            if accelerator.sla_last_step == 1:
                accelerator.save_state(str(tmp_path / "saved"))
                saved = raw.model.weight.item()
            if len(weights) == 3:
                with torch.no_grad():
                    raw.model.weight.add_(1.0)
                order(Action.ROLLBACK, at_step=4, onset=4)
            weights.append(raw.model.weight.item())

    steps = [sample.step for sample in samples(accelerator)]
    if is_registered:
        assert steps == [0, 1, 2, 3, 4, 2, 3, 4]
        assert weights[3] == weights[4] == saved + 1.0 and weights[5] == saved
    else:
        assert steps == [0, 1, 2, 3, 4]
        assert "register_for_checkpointing" in caplog.text


def test_a_step_has_one_loss(tmp_path):
    """
    A loss for each item is refused with its shape.
    """
    accelerator = with_contract(tmp_path)

    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        accelerator.sla_step(torch.ones(3))

    assert accelerator.sla_run_folder is None


@pytest.mark.smoke
@pytest.mark.parametrize("is_attached", [True, False])
def test_figures_go_into_the_trackers_of_the_loop(tmp_path, is_attached):
    """
    With log_figures the trackers get the contract's figures with whatever the loop logs, at
    its step, and what the loop says wins; without it they get what the loop says.
    """
    tracker = Tracker()
    if is_attached:
        accelerator = Accelerator(cpu=True, log_with=[tracker])
        attach(accelerator, "L1", str(tmp_path / "runs"), log_figures=True)
    else:
        accelerator = with_contract(tmp_path, log_figures=True, log_with=[tracker])
    accelerator.init_trackers("project", config={"lr": 0.1})
    accelerator.log({"before": 1.0})
    loader, step = prepared(accelerator)
    for number, _ in enumerate(loader):
        step(float(number))
        accelerator.log({"loss": number, "sla/step_time_s": -1.0} if number else {}, step=number)
    accelerator.end_training()

    assert tracker.seen[0] == ({"before": 1.0}, None)
    assert [step for _, step in tracker.seen[1:]] == list(range(6))
    values, _ = tracker.seen[-1]
    assert values["loss"] == 5 and values["sla/step_time_s"] == -1.0
    names = {"sla/self_time_s", "sla/data_time_s", "sla/loss_variance", "sla/useful_time_ratio"}
    assert names <= values.keys()
    assert all(isinstance(value, int | float) for value in values.values())


def test_trackers_are_left_alone_by_default(tmp_path):
    """
    Unless figures are asked for a tracker gets what the loop logs, and nothing else.
    """
    tracker = Tracker()
    accelerator = with_contract(tmp_path, log_with=[tracker])
    accelerator.init_trackers("project", config={})
    loader, step = prepared(accelerator)
    for number, _ in enumerate(loader):
        step(float(number))
        accelerator.log({"loss": number}, step=number)

    assert tracker.seen == [({"loss": number}, number) for number in range(6)]
