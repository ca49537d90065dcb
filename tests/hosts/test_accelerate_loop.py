"""A hand-written loop with an ``SLAAccelerator``, in one process and without a monitor.

What is promised here is what gets into the ring: steps, losses, phases.
"""

import contextlib
import gc
import math
import pickle
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sla_accelerate import SLAAccelerator, TrainingStoppedError, _runs
from slav1.contract import Contract
from slav1.decision import Action
from slav1.phase import Phase
from slav1.recorder.layout import Word
from slav1.recorder.ring import read_ring_file
from slav1.sample import Sample
from slav1.testing import inject

PAUSE_S = 0.03
UNWATCHED = Contract.level("L1").override(monitor={"kind": "off"})


@dataclass
class Job:
    """One training: the accelerator, its prepared objects, the phases it was seen in."""

    folder: Path
    settings: dict[str, Any]
    num_batches: int = 6
    accelerator: SLAAccelerator = field(init=False)

    def __post_init__(self) -> None:
        self.accelerator = SLAAccelerator(
            contract=UNWATCHED, run_dir=str(self.folder), cpu=True, **self.settings
        )
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        prepared = self.accelerator.prepare(model, optimizer, batches(self.num_batches))
        self.model, self.optimizer, self.loader = prepared

    @property
    def phase(self) -> Phase:
        """Where the monitor would see this rank."""
        return watch().recorder.phase

    def step(self, loss: float | Tensor = 1.0) -> None:
        """Backward and optimizer, as a loop has them."""
        self.accelerator.backward(self.loss(loss))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self) -> None:
        """An epoch."""
        for _ in self.loader:
            self.step()

    def loss(self, value: float | Tensor) -> Tensor:
        """A loss of this value that hangs on the model."""
        return value + 0.0 * self.model(torch.ones(1, 2)).sum()

    def samples(self) -> list[Sample]:
        """Ends the training; the steps that the ring holds."""
        folder = self.accelerator.sla_run_folder
        self.accelerator.end_training()
        return read_ring_file(folder / "ring-0.bin")


def batches(num: int) -> DataLoader[Any]:
    """A loader with ``num`` batches of one."""
    return DataLoader(TensorDataset(torch.ones(num, 2)), batch_size=1)


def watch() -> Any:
    """The run that is open."""
    found = _runs.current()
    assert found is not None
    return found


def order(action: Action, *, at_step: int) -> None:
    """Writes a decision into the block, as the monitor does."""
    words = watch().session._block.words
    words[Word.SCHEDULE_STEP], words[Word.ACTION] = at_step, action
    words[Word.SCHEDULED] = words[Word.HOLD] = 1


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate shares its state among all objects of a process; so do we."""
    yield
    _runs.end(None)
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """Starts a training; arguments as for the accelerator."""
    return lambda **settings: Job(tmp_path, settings)


@pytest.mark.smoke
def test_each_optimizer_step_is_written_with_its_loss(job):
    """
    The steps of a loop are numbered from 0 and carry the loss that was given to backward.
    """
    training = job()
    for value, _ in zip((3.0, 2.0, 1.0), training.loader, strict=False):
        training.step(value)

    samples = training.samples()

    assert [(s.step, s.loss, s.batch) for s in samples] == [(0, 3.0, 0), (1, 2.0, 1), (2, 1.0, 2)]


@pytest.mark.smoke
def test_gradient_accumulation_makes_one_step_with_the_mean_loss(job):
    """
    While gradients accumulate no step ends; the loss of a step is the mean of the losses
    as the user computed them, and a short last group is a step too.
    """
    training = job(gradient_accumulation_steps=4)
    for number, _ in enumerate(training.loader):
        with training.accelerator.accumulate(training.model):
            training.step(float(number))

    samples = training.samples()

    assert [(s.step, s.loss, s.batch) for s in samples] == [(0, 1.5, 3), (1, 4.5, 5)]


def test_of_several_batches_of_a_step_the_bad_one_is_named(job):
    """
    Where the loss of one micro-batch is not finite, the step's record has that batch.
    """
    training = job(gradient_accumulation_steps=3)
    for number, _ in enumerate(training.loader):
        with training.accelerator.accumulate(training.model):
            training.step(math.nan if number == 1 else 1.0)

    assert [(s.step, s.batch) for s in training.samples()] == [(0, 1), (1, 5)]


def test_steps_under_a_gradient_scaler_say_so(job, monkeypatch):
    """
    A scaler leaves the update of a bad loss out: the step that is made next has that batch, and
    each record says that a scaler is at work.
    """
    made = SLAAccelerator.__init__

    def with_scaler(self, *args, **settings):
        made(self, *args, **settings)
        self.scaler = torch.amp.GradScaler("cpu")

    monkeypatch.setattr(SLAAccelerator, "__init__", with_scaler)
    training = job()
    for number, _ in enumerate(training.loader):
        training.step((math.nan if number == 2 else 1.0) * training.model(torch.ones(1, 2)).sum())

    samples = training.samples()

    assert [(s.batch, s.is_scaled) for s in samples] == [(n, True) for n in (0, 1, 2, 4, 5)]
    assert [math.isfinite(s.loss) for s in samples] == [True, True, False, True, True]


class FailsOnce(torch.optim.SGD):
    """Derives from an optimizer of torch's, and so runs the hooks of both; its second update
    raises in the middle."""

    num_updates = 0

    def step(self, closure: Any = None) -> Any:
        self.num_updates += 1
        if self.num_updates == 2:
            raise RuntimeError("the user's own")
        return super().step(closure)


def test_an_update_of_a_derived_optimizer_is_one_step(job):
    """
    A class that calls the update of the class it derives from makes one step of it, and goes
    on to be counted after an update that raised.
    """
    training = job()
    own = FailsOnce(training.model.parameters(), lr=0.0)
    _runs.current().prepared.remove()
    training.optimizer = training.accelerator.prepare(own)
    for _ in training.loader:
        with contextlib.suppress(RuntimeError):
            training.step()

    assert [sample.step for sample in training.samples()] == [0, 1, 2, 3, 4]


def test_two_optimizers_make_one_step_an_iteration(job):
    """
    A loop with two optimizers has one step an iteration, with the mean of both losses.
    """
    training = job()
    other = training.accelerator.prepare(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.0))
    for _ in training.loader:
        training.step(1.0)
        training.accelerator.backward(training.loss(3.0))
        other.step()

    samples = training.samples()

    assert [s.loss for s in samples] == [2.0] * 5
    assert [s.step for s in samples] == list(range(5))


def test_each_part_of_a_step_is_timed(job):
    """
    A pause counts for the part of the step it happens in, and for no other.
    """

    class Slow(Dataset[Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Tensor:
            time.sleep(PAUSE_S)
            return torch.ones(2)

    training = job()
    loader = training.accelerator.prepare(DataLoader(Slow(), batch_size=1))
    for number, _ in enumerate(loader):
        time.sleep(PAUSE_S if number == 1 else 0)
        training.accelerator.backward(training.loss(1.0))
        time.sleep(PAUSE_S if number == 2 else 0)
        training.optimizer.step()

    steps = training.samples()

    # The loader is one batch ahead, so the last step fetches nothing.
    assert [s.data_s >= PAUSE_S for s in steps] == [True, True, True, False]
    assert [s.forward_s >= PAUSE_S for s in steps] == [False, True, False, False]
    assert [s.optimizer_s >= PAUSE_S for s in steps] == [False, False, True, False]


def test_without_a_prepared_loader_work_counts_as_forward(job):
    """
    A loop whose loader Accelerate does not know still tells how long its own work takes.
    """
    training = job()
    for _ in range(3):
        time.sleep(PAUSE_S)
        training.step()

    steps = training.samples()

    assert all(s.forward_s >= PAUSE_S for s in steps[1:])


@pytest.mark.smoke
def test_the_loop_says_where_it_is(job):
    """
    The published phase follows the loop: forward with the batch, optimizer after the
    backward, between after the step, evaluation when the epoch is over.
    """
    training = job()
    seen = [training.phase]
    for _ in training.loader:
        seen.append(training.phase)
        training.accelerator.backward(training.loss(1.0))
        seen.append(training.phase)
        training.optimizer.step()
        seen.append(training.phase)
    seen.append(training.phase)

    step = [Phase.FORWARD, Phase.OPTIMIZER, Phase.BETWEEN]
    assert seen == [Phase.SETUP, *step * 6, Phase.EVALUATION]


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference_mode", "sla_phase"])
def test_an_evaluation_inside_the_epoch_is_no_part_of_a_step(job, how):
    """
    An evaluation in the middle of an epoch is seen as one, in each of the usual ways to
    write it, and no step gets longer by it.
    """
    training = job()
    others = training.accelerator.prepare(batches(3))
    seen = set()

    def evaluate() -> None:
        for _ in others:
            seen.add(training.phase)
            time.sleep(PAUSE_S)
        seen.add(training.phase)

    for number, _ in enumerate(training.loader):
        training.step()
        if number == 2:
            training.model.train(how != "eval")
            marks = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
            phase = training.accelerator.sla_phase("evaluation")
            with phase if how == "sla_phase" else marks.get(how, torch.enable_grad)():
                evaluate()
            training.model.train()

    steps = training.samples()

    assert seen == {Phase.EVALUATION}
    assert [s.step for s in steps] == list(range(6))
    assert max(s.step_time_s for s in steps[1:]) < 3 * PAUSE_S


def test_a_long_generation_is_seen_as_evaluation(job):
    """
    Code without any loader counts as evaluation once the model is in that mode and the
    loop asks the accelerator for anything.
    """
    training = job()
    for _ in training.loader:
        training.step()
        training.accelerator.unwrap_model(training.model)
        in_training = training.phase
        training.model.eval()
        training.accelerator.unwrap_model(training.model)
        in_evaluation = training.phase
        training.model.train()

    assert (in_training, in_evaluation) == (Phase.BETWEEN, Phase.EVALUATION)


def test_training_in_evaluation_mode_is_training(job):
    """
    A loop that trains with the model in evaluation mode is understood after one step.
    """
    training = job()
    training.model.eval()
    seen = []
    for _ in training.loader:
        seen.append(training.phase)
        training.step()

    steps = training.samples()

    assert seen == [Phase.EVALUATION, *[Phase.FORWARD] * 5]
    assert [s.step for s in steps] == list(range(6))


def test_saves_have_the_limits_of_a_checkpoint(job, tmp_path):
    """
    While anything is saved or loaded the phase is that of a checkpoint, also in user code
    marked as such, and afterwards the phase before.
    """
    training = job()
    seen = []
    training.accelerator.register_save_state_pre_hook(lambda *_: seen.append(training.phase))
    training.accelerator.register_load_state_pre_hook(lambda *_: seen.append(training.phase))
    training.step()
    before = training.phase

    training.accelerator.save_state(tmp_path / "saved")
    training.accelerator.load_state(tmp_path / "saved")
    with training.accelerator.sla_phase("checkpoint"):
        training.accelerator.get_state_dict(training.model)
        seen.append(training.phase)

    assert seen == [Phase.CHECKPOINT] * 3
    assert training.phase is before


def test_a_failed_save_does_not_leave_the_phase_behind(job, tmp_path):
    """
    When a save raises, the error reaches the user and the phase is the one before.
    """
    training = job()
    training.step()
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(FileExistsError):
        training.accelerator.save_state(tmp_path / "file")

    assert training.phase is Phase.FORWARD


def test_an_unknown_phase_is_refused(job):
    """
    A phase that does not exist is refused with those that do.
    """
    with pytest.raises(ValueError, match="'evaluation' or 'checkpoint', got 'test'"):
        job().accelerator.sla_phase("test")


@pytest.mark.smoke
def test_a_stop_ends_the_loop_at_its_step(job):
    """
    A decision for the end of step 3 raises from the optimizer of step 3, after its
    update; a loop that swallows it gets it again, and end_training is still fine.
    """
    training = job()
    order(Action.STOP, at_step=3)
    with pytest.raises(TrainingStoppedError, match="end of step 3") as stop:
        training.run()
    with pytest.raises(TrainingStoppedError):
        training.step()

    assert stop.value.step == training.accelerator.sla_stopped_at == 3
    assert stop.value.run_folder == training.accelerator.sla_run_folder
    assert training.accelerator.sla_should_stop
    assert [s.step for s in read_ring_file(stop.value.run_folder / "ring-0.bin")] == [0, 1, 2, 3]
    training.accelerator.end_training()
    assert not training.accelerator.sla_should_stop


def test_a_stop_can_be_a_flag(job):
    """
    With on_stop="flag" nothing is raised: the flag is up from the end of that step on.
    """
    training = job(on_stop="flag")
    order(Action.STOP, at_step=3)
    flags = []
    for _ in training.loader:
        training.step()
        flags.append(training.accelerator.sla_should_stop)

    assert flags == [False, False, False, True, True, True]
    assert len(training.samples()) == 6


def test_a_second_training_is_a_second_run(job):
    """
    After end_training the same objects can be trained again, in a run of its own.
    """
    training = job()
    training.step()
    first = training.accelerator.sla_run_folder
    assert len(training.samples()) == 1

    training.step()
    training.step()

    assert training.accelerator.sla_run_folder != first
    assert [s.step for s in training.samples()] == [0, 1]


def test_all_accelerators_of_a_process_share_one_run(job, tmp_path):
    """
    A second SLAAccelerator joins the open run; one that names another contract is refused.
    """
    training = job()
    again = SLAAccelerator(contract=UNWATCHED, run_dir=str(tmp_path), cpu=True)
    other = SLAAccelerator(contract="L2", run_dir=str(tmp_path), cpu=True)
    again.backward(training.loss(1.0))
    training.optimizer.step()

    with pytest.raises(ValueError, match="share one run"):
        other.prepare(nn.Linear(2, 1))
    assert again.sla_run_folder == training.accelerator.sla_run_folder
    assert len(training.samples()) == 1


@pytest.mark.smoke
def test_what_is_prepared_stays_what_the_host_makes_of_it(job):
    """
    Loader, optimizer and accelerator pass for the host's own: types, length, pickling,
    and a scheduler made afterwards.
    """
    training = job()
    plain = Accelerator(cpu=True).prepare(batches(6))
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, step_size=1)
    training.step()
    scheduler.step()

    assert isinstance(training.accelerator, Accelerator)
    assert isinstance(training.loader, type(plain))
    assert isinstance(training.loader, DataLoader)
    assert type(training.loader).__name__ == type(plain).__name__
    assert type(pickle.loads(pickle.dumps(training.loader))) is type(
        pickle.loads(pickle.dumps(plain))
    )
    assert pickle.loads(pickle.dumps(training.model)).in_features == 2
    assert len(training.loader) == len(plain) == len(list(training.loader)) == 6
    assert len(list(training.accelerator.skip_first_batches(training.loader, 2))) == 4


def test_freed_objects_are_free(job):
    """
    Nothing keeps a model alive that the user frees, and a new one can be trained in the
    same run.
    """
    training = job()
    training.step()
    model = weakref.ref(training.model)
    training.model, training.optimizer, training.loader = training.accelerator.free_memory(
        training.model, training.optimizer, training.loader
    )
    gc.collect()
    assert model() is None

    training.model = training.accelerator.prepare(nn.Linear(2, 1))
    training.optimizer = training.accelerator.prepare(
        torch.optim.SGD(training.model.parameters(), lr=0.0)
    )
    training.step()

    assert [s.step for s in training.samples()] == [0, 1]


def test_objects_that_were_given_back_count_no_longer(job):
    """
    After free_memory the old optimizer, though the user still has it, is none of the loop's.
    """
    training = job()
    training.step()
    old = training.optimizer
    training.accelerator.free_memory()

    training.model = training.accelerator.prepare(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(training.model.parameters(), lr=0.0)
    training.optimizer = training.accelerator.prepare(optimizer)
    training.step()
    old.step()

    assert [s.step for s in training.samples()] == [0, 1]


def test_an_accelerator_that_was_dropped_leaves_nothing(job):
    """
    A program that makes its accelerator and objects anew, without a word to the first,
    goes on in the same run as if they were the only ones.
    """
    training = job()
    training.step()
    model = weakref.ref(training.model)
    del training
    gc.collect()
    assert model() is None

    training = job()
    training.step()

    assert [s.step for s in training.samples()] == [0, 1]


def test_what_was_not_finite_is_told(job):
    """
    A loss that is not finite is written with what else was not, looked at before the
    update spreads it; the next step is clean.
    """
    with inject("nan", rank=0, step=1, what="batch"):
        training = job()
        for (batch,) in training.loader:
            training.step(training.model(batch).sum().detach())

    steps = training.samples()

    assert steps[1].non_finite == ("input", "loss")
    assert math.isnan(steps[1].loss)
    assert steps[2].non_finite == ()


def test_an_exception_of_a_step_reaches_the_user(job):
    """
    Faults act where they are planned, and what is raised there is the user's.
    """
    with inject("exception", rank=0, step=2, where="optimizer"):
        training = job()
        with pytest.raises(RuntimeError, match="step 2, on entering optimizer"):
            training.run()

    assert training.phase is Phase.OPTIMIZER
    assert len(training.samples()) == 2


def test_nothing_happens_before_the_first_prepare(tmp_path):
    """
    Constructing an accelerator starts nothing and writes nothing.
    """
    accelerator = SLAAccelerator(contract="L1", run_dir=str(tmp_path), cpu=True)

    assert accelerator.sla_run_folder is None
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_contract_is_refused_when_it_is_given(tmp_path):
    """
    A contract that can't be used fails in the constructor, not in the middle of training.
    """
    with pytest.raises(ValueError, match="L9"):
        SLAAccelerator(contract="L9", run_dir=str(tmp_path), cpu=True)
