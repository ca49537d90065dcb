"""One training that every host can make, and how each of them makes it.

A host joins the promises of ``test_host_contract.py`` by its line in ``HOSTS``.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
import toys
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sla_accelerate import SLAAccelerator, _runs, attach
from sla_lightning import SLACallback
from slav1.contract import Contract
from slav1.phase import Phase

NUM_RANKS = int(os.environ.get("WORLD_SIZE", "1"))
# Later than the steps in which nothing is known of their usual length.
EVALUATED_AT = 7


class Batch(NamedTuple):
    """What was there when a batch was to be trained with."""

    step: int
    """The step that it is part of."""

    items: list[int]
    """Which items it has."""

    weight: float
    """The model's."""


@dataclass(kw_only=True)
class Task:
    """One training: a model of one weight on numbered items, two a batch, not shuffled."""

    folder: Path
    """Where runs and checkpoints go."""

    num_batches: int = 12
    """For each rank and epoch."""

    num_epochs: int = 1
    accumulate: int = 1
    step_s: float = 0.0
    """How long a forward takes, in seconds."""

    evaluate_s: float = 0.0
    """How long the evaluation after step 7 takes, in seconds; 0 for none."""

    pause_s: float = 0.0
    """How long the forward of step 8 stands still, in seconds."""

    save_at: tuple[int, ...] = ()
    """Steps at whose end a checkpoint is saved."""

    loads: bool = False
    """Whether it goes on from the newest good checkpoint."""

    bad_items: tuple[int, ...] = ()
    """A batch with one of them has a loss that is not a number."""

    raises_at: int | None = None
    """Item with which the user's own code raises."""

    clauses: dict[str, Any] = field(default_factory=dict)
    """What the contract has besides L1."""

    find_phase: Callable[[], Phase] | None = None
    """How the monitor would see this rank now; set by the host."""

    batches: list[Batch] = field(default_factory=list)
    phases: set[tuple[str, Phase]] = field(default_factory=set)
    """Where the code was and what the monitor would have seen, from the second step on."""

    objects: list[Any] = field(default_factory=list)
    """The model and its optimizer."""

    path_of: Callable[[int], Path] = field(init=False)
    """Where the checkpoint of a step lies; a host that names them itself says so."""

    def __post_init__(self) -> None:
        self.path_of = lambda step: self.folder / f"saved-{step}"

    def contract(self) -> Contract:
        """The contract of the training."""
        monitor = {"kind": "process" if NUM_RANKS > 1 else "thread", "tick_s": 0.02}
        hang = {"limit_s": 10.0, "first_step_limit_s": 60.0}
        return Contract.level("L1").override(**{"monitor": monitor, "hang": hang, **self.clauses})

    def loader(self) -> DataLoader[Any]:
        """The items; loaders make them ranks' own."""
        return DataLoader(Items(self), batch_size=2)

    def batch_to_evaluate(self) -> DataLoader[Any]:
        """Something to evaluate with."""
        return DataLoader(torch.zeros(NUM_RANKS, 1), batch_size=1)

    def model(self) -> nn.Linear:
        """The model, the same everywhere."""
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        model.weight.register_hook(lambda _: self.note("backward"))
        return model

    def optimizer(self, model: nn.Module) -> "Watched":
        """Its optimizer."""
        optimizer = Watched(model.parameters(), lr=0.01)
        optimizer.task = self
        self.objects = [model, optimizer]
        return optimizer

    def loss(self, step: int, model: nn.Module, items: Tensor) -> Tensor:
        """The loss of a batch."""
        self.note("forward")
        numbers = items.flatten().tolist()
        self.batches.append(Batch(step, numbers, weight_of(model)))
        time.sleep(self.pause_s if step == EVALUATED_AT + 1 and self.pause_s else self.step_s)
        if self.raises_at in numbers:
            raise KeyError("the user's own")
        loss = model(items.float() / 100).square().mean()
        return loss * float("nan") if set(self.bad_items) & set(numbers) else loss

    def note(self, place: str) -> None:
        """The code is at a place."""
        if self.find_phase is not None and len({batch.step for batch in self.batches}) > 1:
            self.phases.add((place, self.find_phase()))


class Items(Dataset[Tensor]):
    """Numbers, each an item."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __len__(self) -> int:
        return 2 * self.task.num_batches * NUM_RANKS

    def __getitem__(self, index: int) -> Tensor:
        self.task.note("data")
        return torch.tensor([index])


class Watched(torch.optim.SGD):
    """Says where it is."""

    task: Task

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        self.task.note("optimizer")
        super().step()
        return loss


class Ended(NamedTuple):
    """What came of a training."""

    run_folder: Path
    stopped_at: int | None
    """Step at whose end the contract stopped it."""

    error: BaseException | None
    """What it ended by, but for the contract's stop."""


def weight_of(model: Any) -> float:
    """The one weight, whatever the model is wrapped in."""
    return next(iter(model.parameters())).item()


class Module(pl.LightningModule):
    """The training in Lightning."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.linear = task.model()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.task.loss(self.trainer.global_step, self.linear, batch)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.task.note("evaluation")
        time.sleep(self.task.evaluate_s)

    def on_train_batch_end(self, *_: Any) -> None:
        step = self.trainer.global_step - 1
        is_update = len(self.task.batches) % self.task.accumulate == 0
        if is_update and step in self.task.save_at:
            self.trainer.save_checkpoint(self.task.path_of(step))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.task.optimizer(self.linear)


def in_lightning(task: Task) -> Ended:
    """Trains with a Trainer."""
    callback = SLACallback(task.contract(), run_dir=str(task.folder / "runs"))
    task.find_phase = lambda: callback._fit.session.recorder.phase
    trainer = toys.trainer(
        callback,
        max_epochs=task.num_epochs,
        accumulate_grad_batches=task.accumulate,
        val_check_interval=EVALUATED_AT + 1 if task.evaluate_s else None,
        limit_val_batches=1 if task.evaluate_s else 0,
        devices=NUM_RANKS,
        **({"strategy": "ddp"} if NUM_RANKS > 1 else {}),
    )
    error = None
    try:
        path = "last_good" if task.loads else None
        trainer.fit(Module(task), task.loader(), task.batch_to_evaluate(), ckpt_path=path)
    except Exception as raised:  # noqa: BLE001 - whatever comes is looked at
        error = raised
    task.find_phase = None
    return Ended(callback.run_folder, callback.stopped_at, error)


def in_accelerate(task: Task) -> Ended:
    """Trains with an SLAAccelerator."""
    how = {"contract": task.contract(), "run_dir": str(task.folder / "runs")}
    return loop(task, SLAAccelerator(cpu=True, gradient_accumulation_steps=task.accumulate, **how))


def in_attached(task: Task) -> Ended:
    """Trains with an accelerator that has prepared everything before it is attached."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=task.accumulate)
    parts = prepare(task, accelerator)
    attach(accelerator, task.contract(), str(task.folder / "runs"))
    return loop(task, accelerator, parts)


def prepare(task: Task, accelerator: Accelerator) -> Any:
    """Model, optimizer and loader."""
    model = task.model()
    loaders = task.loader(), task.batch_to_evaluate()
    return accelerator.prepare(model, task.optimizer(model), *loaders)


def loop(task: Task, accelerator: Any, parts: Any = None) -> Ended:
    """The loop by hand."""
    task.find_phase = lambda: _runs.current().recorder.phase
    error = folder = stopped_at = None
    try:
        steps(task, accelerator, prepare(task, accelerator) if parts is None else parts)
    except Exception as raised:  # noqa: BLE001 - whatever comes is looked at
        stopped_at = accelerator.sla_stopped_at
        error = raised if stopped_at is None else None
        folder = accelerator.sla_run_folder
        end(accelerator)
    else:
        folder = accelerator.sla_run_folder
        end(accelerator)
    task.find_phase = None
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()
    return Ended(folder, stopped_at, error)


def end(accelerator: Any) -> None:
    """Ends the training; ranks keep their process group for the next one."""
    if NUM_RANKS > 1:
        _runs.end(sys.exc_info()[1])
    else:
        accelerator.end_training()


def steps(task: Task, accelerator: Any, parts: Any) -> None:
    """Its epochs."""
    model, optimizer, loader, others = parts
    if task.loads:
        accelerator.load_state("last_good")
    for _ in accelerator.sla_epochs(task.num_epochs):
        for items in loader:
            with accelerator.accumulate(model):
                step = accelerator.sla_last_step + 1
                accelerator.backward(task.loss(step, model, items))
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            if step in task.save_at:
                accelerator.save_state(task.path_of(step))
            if task.evaluate_s and step == EVALUATED_AT:
                evaluate(task, model, others)


def evaluate(task: Task, model: Any, loader: Any) -> None:
    """An evaluation in the middle of an epoch."""
    model.eval()
    with torch.no_grad():
        for _ in loader:
            task.note("evaluation")
            time.sleep(task.evaluate_s)
    model.train()


def in_trainer(task: Task) -> Ended:
    """Trains with a Trainer of transformers, which is imported only then."""
    import host_trainer

    return host_trainer.train(task)


HOSTS: dict[str, Callable[[Task], Ended]] = {
    "lightning": in_lightning,
    "accelerate": in_accelerate,
    "attached": in_attached,
    **({"transformers": in_trainer} if find_spec("transformers") else {}),
}
