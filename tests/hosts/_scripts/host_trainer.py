"""The training of ``hosts.py`` by a ``transformers.Trainer``, which takes seconds to import."""

import logging
from typing import Any

import hosts
import torch
import transformers
from accelerate.state import AcceleratorState, GradientState, PartialState
from hosts import Ended, Task
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from sla_accelerate import SLATrainerCallback, _runs

logging.getLogger("accelerate").setLevel(logging.ERROR)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


class TaskTrainer(Trainer):
    """Computes the task's loss."""

    task: Task

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> Any:
        return self.task.loss(self.state.global_step, model, inputs["items"])

    def prediction_step(self, *_: Any, **__: Any) -> Any:
        self.task.note("evaluation")
        hosts.time.sleep(self.task.evaluate_s)
        return None, None, None

    def _get_train_sampler(self, *_: Any) -> Any:
        return SequentialSampler(self.train_dataset)


class Saves(TrainerCallback):
    """Asks for a save at the task's steps."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save |= state.global_step - 1 in self.task.save_at


def train(task: Task) -> Ended:
    """Trains with a Trainer."""
    callback = SLATrainerCallback(task.contract(), run_dir=str(task.folder / "runs"))
    task.find_phase = lambda: _runs.current().recorder.phase
    task.path_of = lambda step: task.folder / "out" / f"checkpoint-{step + 1}"
    model = task.model()
    made = TaskTrainer(
        model=model,
        args=settings(task),
        data_collator=lambda rows: {"items": torch.stack(list(rows))},
        train_dataset=hosts.Items(task),
        eval_dataset=torch.zeros(hosts.NUM_RANKS, 1),
        callbacks=[Saves(task), callback],
        optimizers=(task.optimizer(model), None),
    )
    made.task = task
    error = None
    try:
        made.train(resume_from_checkpoint="last_good" if task.loads else None)
    except Exception as raised:  # noqa: BLE001 - whatever comes is looked at
        error = raised
    task.find_phase = None
    _runs.end(None)
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()
    return Ended(callback.run_folder, callback.stopped_at, error)


def settings(task: Task) -> TrainingArguments:
    """Quiet, with a constant learning rate and the gradient as it is."""
    evaluates = {"eval_strategy": "steps", "eval_steps": hosts.EVALUATED_AT + 1}
    return TrainingArguments(
        output_dir=str(task.folder / "out"),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=task.accumulate,
        num_train_epochs=task.num_epochs,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        **evaluates if task.evaluate_s else {},
    )
