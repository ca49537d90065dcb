"""A ``transformers.Trainer`` under contract, in this process: steps, saves, resumes, rollbacks."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

pytest.importorskip("transformers", reason="pip install -e '.[transformers]'")
import trainers
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback

from sla_accelerate import SLATrainer, SLATrainerCallback, TrainingStoppedError, _runs
from sla_accelerate._trainer import compat as _compat_trainer
from slav1.checkpoint.errors import CheckpointDamagedError
from slav1.checkpoint.formats import examine
from slav1.decision import Action
from slav1.ledger import read_ledger
from slav1.phase import Phase
from slav1.recorder.layout import Word
from slav1.recorder.ring import read_ring_file

from ._counting import UNWATCHED, WATCHED, start_afresh
from ._runs import run_folders

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]

Make = Callable[..., Trainer]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate shares its state among all objects of a process; so do we."""
    yield
    start_afresh()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a trainer; arguments as for ``trainers.trainer``."""

    def made(*callbacks: Any, folder: str = "job", contract: Any = UNWATCHED, **how: Any) -> Any:
        run_dir = str(tmp_path / folder / "runs")
        return trainers.trainer(tmp_path / folder, contract, *callbacks, run_dir=run_dir, **how)

    return made


class Orders(TrainerCallback):
    """Hands an action out at the end of a step, once, as the monitor does."""

    def __init__(
        self, action: Action, *, at_step: int, onset: int = 0, alarm: int | None = None
    ) -> None:
        self.action, self.at_step, self.onset = action, at_step, onset
        self.alarm = at_step if alarm is None else alarm

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.at_step and self.action is not None:
            watch = _runs.current()
            assert watch is not None
            words = watch.session._block.words
            words[Word.SCHEDULE_STEP], words[Word.ACTION] = self.at_step, self.action
            words[Word.ONSET_STEP], words[Word.ALARM_STEP] = self.onset, self.alarm
            words[Word.SCHEDULED] += 1
            words[Word.HOLD] = words[Word.SCHEDULED]
            self.action = None


class StopsAt(TrainerCallback):
    """Ends a training after some steps, as a time limit does."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= state.global_step == self.num_steps


def checkpoints(made: Trainer) -> list[int]:
    """Numbers of the checkpoints in the output folder, ascending."""
    found = _compat_trainer.numbered(Path(made.args.output_dir))
    return sorted(number for number, _ in found)


def damage(made: Trainer, number: int) -> None:
    """Flips one bit of a checkpoint's weights."""
    file = Path(made.args.output_dir) / f"checkpoint-{number}" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def notes(made: Trainer) -> str:
    """What the ledger says about the last run."""
    ledger = read_ledger(made.sla.run_folder / "ledger.jsonl")
    return "\n".join(line.message or "" for line in ledger)


@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_a_watched_training_is_the_same_training(make, accumulation):
    """
    Losses are to the last bit those of a training without the contract, each step is written
    once with the loss that the host logs, and each checkpoint is whole.
    """
    how = {"gradient_accumulation_steps": accumulation, "eval_strategy": "steps", "eval_steps": 3}
    plain = make(contract=None, folder="plain", **how)
    plain.train()
    start_afresh()
    watched = make(**how)

    result = watched.train()

    assert result.global_step == 20
    assert trainers.losses(watched) == trainers.losses(plain)
    records = read_ring_file(watched.sla.run_folder / "ring-0.bin")
    assert [one.step for one in records] == list(range(20))
    logged = [loss for _, loss in trainers.losses(plain)]
    assert [one.loss for one in records] == pytest.approx(logged, rel=1e-6)
    assert all(one.grad_norm is not None for one in records)
    assert checkpoints(watched) == [4, 8, 12, 16, 20]
    found = examine(Path(watched.args.output_dir) / "checkpoint-12")
    assert found.is_whole and found.form == "transformers folder"
    assert found.checks["digest"] >= 8


@pytest.mark.parametrize(
    ("num_steps", "how"),
    [
        (10, {}),
        pytest.param(5, {"gradient_accumulation_steps": 3}, marks=pytest.mark.thorough),
        pytest.param(18, {"save_steps": 16}, marks=pytest.mark.thorough),
        pytest.param(17, {"save_strategy": "epoch"}, marks=pytest.mark.thorough),
        pytest.param(7, {"gradient_accumulation_steps": 5}, marks=pytest.mark.thorough),
        pytest.param(9, {"dataloader_num_workers": 2}, marks=pytest.mark.thorough),
    ],
    ids=["steps", "accumulated", "end of an epoch", "by epochs", "odd end", "workers"],
)
def test_a_resumed_training_is_the_rest_of_the_unbroken_one(make, num_steps, how):
    """
    Every loss after the checkpoint is to the last bit that of a training that was never broken
    off, with what is drawn for dropout and in the data set.
    """
    # Workers that are started anew draw anew.
    how = {**how, "train_dataset": trainers.Words(is_noisy="dataloader_num_workers" not in how)}
    unbroken = make(folder="unbroken", **how)
    unbroken.train()
    start_afresh()
    make(StopsAt(num_steps), **how).train()
    start_afresh()
    resumed = make(**how)

    resumed.train(resume_from_checkpoint=True)

    assert 1 < resumed.counts.steps[0] <= num_steps + 1
    assert trainers.losses(resumed) == trainers.losses(unbroken)
    assert resumed.seen == unbroken.seen[-len(resumed.seen) :]


@pytest.mark.thorough
def test_a_user_who_wants_no_batches_skipped_gets_none_skipped(make):
    """
    With ``ignore_data_skip`` a resumed training begins its epoch anew, with the batches and the
    losses that it has without the contract.
    """
    resumed = []
    for contract, folder in ((None, "plain"), (UNWATCHED, "watched")):
        make(StopsAt(10), contract=contract, folder=folder).train()
        start_afresh()
        resumed.append(make(contract=contract, folder=folder, ignore_data_skip=True))
        resumed[-1].train(resume_from_checkpoint=True)
        start_afresh()
    plain, watched = resumed

    assert plain.seen[0][0] == watched.seen[0][0] == 8
    assert watched.seen == plain.seen
    assert trainers.losses(watched) == trainers.losses(plain)


def test_true_takes_the_newest_checkpoint_that_verifies(make):
    """
    A damaged checkpoint is passed over before anything of it is loaded, stays on the disk and is
    named; one that is asked for by its path is refused.
    """
    first = make(max_steps=12)
    first.train()
    damage(first, 12)
    start_afresh()
    second = make(max_steps=14, contract=WATCHED)

    second.train(resume_from_checkpoint=True)

    assert second.counts.steps == [9, 10, 11, 12, 13, 14]
    assert "model.safetensors" in notes(second) and "the 4 steps" in notes(second)
    assert (Path(first.args.output_dir) / ".rejected-checkpoint-12").is_dir()
    damage(second, 8)
    start_afresh()
    third = make()
    with pytest.raises(CheckpointDamagedError, match=r"checkpoint-8.*model\.safetensors"):
        third.train(resume_from_checkpoint=f"{third.args.output_dir}/checkpoint-8")
    assert third.counts.steps == []


@pytest.mark.thorough
def test_true_passes_over_what_the_host_left_unfinished(make):
    """
    Of checkpoints that were saved without the contract the newest that looks whole is taken, not
    the one with the highest number; with none at all, ``last_good`` begins from the start and
    True does not.
    """
    plain = make(contract=None, max_steps=12)
    plain.train()
    (Path(plain.args.output_dir) / "checkpoint-12" / "optimizer.pt").unlink()
    start_afresh()
    made = make(max_steps=14, contract=WATCHED)

    made.train(resume_from_checkpoint=True)

    assert made.counts.steps == [9, 10, 11, 12, 13, 14]
    assert "checkpoint-12 is passed over: optimizer.pt" in notes(made)
    assert trainers.losses(made)[:8] == trainers.losses(plain)[:8]
    start_afresh()
    empty = make(folder="empty", max_steps=2, contract=WATCHED)
    with pytest.raises(ValueError, match="No valid checkpoint found"):
        empty.train(resume_from_checkpoint=True)
    empty.train(resume_from_checkpoint="last_good")
    assert empty.counts.steps == [1, 2]
    assert "has no checkpoint yet" in notes(empty)


def test_rotation_never_leaves_less_than_a_good_checkpoint(make, monkeypatch):
    """
    With ``save_total_limit=1`` the checkpoint before the newest goes only after two newer ones
    have been read back; a save that fails costs nothing, and the best one stays.
    """
    monkeypatch.setenv("SLA_INJECT", "corrupt:step=11,steps=2")
    held: list[list[int]] = []

    class Looks(TrainerCallback):
        def on_save(self, *_: Any, **__: Any) -> None:
            held.append(checkpoints(made))

    made = make(Looks(), save_total_limit=1, contract=WATCHED)

    made.train()

    assert held == [[4], [4, 8], [4, 8], [8, 16], [16, 20]]
    assert "Not a checkpoint" in notes(made) or "reads back" in notes(made)
    assert made.args.save_total_limit == 1
    assert not any(path.name.startswith(".sla-") for path in Path(made.args.output_dir).iterdir())


@pytest.mark.thorough
def test_a_checkpoint_that_cannot_be_removed_is_told_once(make, tmp_path):
    """
    Rotation goes on beside a checkpoint that it can't remove, as a link, and the ledger names it.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "job" / "out" / "checkpoint-1"
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere, target_is_directory=True)

    made = make(contract=WATCHED, save_total_limit=2)
    made.train()

    assert notes(made).count(f"{link} could not be removed") == 1
    assert link.is_symlink()
    assert elsewhere.is_dir()
    assert checkpoints(made) == [1, 16, 20]


def test_ctrl_c_in_a_save_leaves_nothing_half_made(make, tmp_path, monkeypatch):
    """
    A save that is broken off by the keyboard leaves neither files nor changed methods behind, a
    machine without room for temporary files is no reason not to save, and however often that
    happens, ``train`` goes on from the last good checkpoint, bit for bit.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))

    class Impatient(trainers.Seeing):
        presses = 4

        def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
            if self.state.global_step == 8 and self.presses:
                self.presses -= 1
                raise KeyboardInterrupt
            super()._save_optimizer_and_scheduler(output_dir)

    unbroken = make(folder="unbroken")
    unbroken.train()
    made = make(kind=Impatient)

    with pytest.raises(KeyboardInterrupt):
        made.train()

    assert [one.name for one in Path(made.args.output_dir).iterdir()] == ["checkpoint-4"]
    assert "_get_output_dir" not in vars(made)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            made.train(resume_from_checkpoint=True)
    made.train(resume_from_checkpoint=True)
    assert trainers.losses(made) == trainers.losses(unbroken)
    assert checkpoints(made) == [4, 8, 12, 16, 20]


def test_a_folder_that_was_moved_keeps_its_good_checkpoints(make, caplog):
    """
    Of an output folder that lies elsewhere than it was trained in, the newest checkpoint that
    one can go on from is taken, and rotation removes it only after two newer good ones; what a
    save lacks and which setting does nothing is said.
    """
    made = make(StopsAt(8))
    made.train()
    start_afresh()
    lean = make(
        StopsAt(12),
        save_only_model=True,
        contract=UNWATCHED.override(checkpoint={"background": True}),
    )
    lean.train(resume_from_checkpoint=True)
    elsewhere = Path(lean.args.output_dir).with_name("elsewhere")
    Path(lean.args.output_dir).rename(elsewhere)
    start_afresh()
    held: list[list[int]] = []

    class Looks(TrainerCallback):
        def on_save(self, *_: Any, **__: Any) -> None:
            held.append(checkpoints(moved))

    moved = make(Looks(), save_total_limit=1)
    moved.args.output_dir = str(elsewhere)

    moved.train(resume_from_checkpoint=True)

    assert moved.counts.steps == list(range(9, 21))
    assert "breach" not in notes(lean)
    assert "It lacks the optimizer" in notes(lean)
    assert "checkpoint.background has no effect" in caplog.text
    assert "checkpoint-12 is passed over: the state of step 11 was not healthy" in caplog.text
    assert "not saved under the contract" not in caplog.text
    assert held == [[4, 8, 12], [12, 16], [16, 20]]


@pytest.mark.thorough
def test_the_best_checkpoint_stays_and_is_verified_before_it_is_loaded(make):
    """
    ``load_best_model_at_end`` keeps its checkpoint through the rotation, finds it under its own
    name, and a damaged one is refused instead of loaded.
    """
    how = {"eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": True}

    class Damages(TrainerCallback):
        """The best one is the first: later evaluations are worse."""

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
            metrics["eval_loss"] = float(state.global_step)

    made = make(Damages(), save_total_limit=1, **how)
    made.train()
    best = Path(made.args.output_dir) / "checkpoint-4"
    assert Path(made.state.best_model_checkpoint) == best
    assert checkpoints(made) == [4, 16, 20]
    loaded = made.model.state_dict()["transformer.wte.weight"]
    from safetensors.torch import load_file

    assert torch.equal(loaded, load_file(best / "model.safetensors")["transformer.wte.weight"])
    damage(made, 4)
    with pytest.raises(CheckpointDamagedError, match="checkpoint-4"):
        made.train(resume_from_checkpoint=f"{made.args.output_dir}/checkpoint-20")


@pytest.mark.parametrize(
    ("how", "orders"),
    [
        ({}, {"at_step": 10, "onset": 9, "alarm": 10}),
        pytest.param(
            {"gradient_accumulation_steps": 3, "max_steps": -1, "num_train_epochs": 4},
            {"at_step": 8, "onset": 5, "alarm": 6},
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"save_steps": 12, "max_steps": -1, "num_train_epochs": 2},
            {"at_step": 18, "onset": 14, "alarm": 17},
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"save_steps": 16, "max_steps": 40},
            {"at_step": 35, "onset": 16, "alarm": 31},
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["steps", "accumulated epochs", "over an epoch's end", "a whole epoch"],
)
def test_a_rollback_leaves_the_bad_batches_out(make, how, orders):
    """
    The host enters its loop again at the last checkpoint before the onset: the steps up to there
    are as they were, the bad steps' batches come no more and all others once, and the last step
    is saved. The other callbacks are not told that training begins again.
    """
    unbroken = make(folder="unbroken", **how)
    unbroken.train()
    start_afresh()
    made = make(Orders(Action.ROLLBACK, **orders), **how)

    made.train()

    bad = range(orders["onset"], orders["alarm"] + 1)
    saved = max(n for n in (4, 8, 12, 16) if n % how.get("save_steps", 4) == 0 and n <= bad[0])
    turn = made.counts.steps.index(orders["at_step"] + 1) + 1
    last = made.counts.steps[-1]
    assert made.counts.steps[turn:] == list(range(saved + 1, last + 1))
    assert [step for step, _ in trainers.losses(made)] == list(range(1, last + 1))
    assert checkpoints(made)[-1] == last
    assert (made.counts.num_begins, made.sla.stopped_at) == (1, None)
    back = next(i for i, one in enumerate(made.seen[1:], 1) if one[0] < made.seen[i - 1][0])
    wanted = [items for step, items in unbroken.seen if step >= saved and step not in bad]
    got = [items for _, items in made.seen[back:]]
    assert got[: len(wanted)] == wanted
    assert last == unbroken.state.global_step - (len(bad) if "num_train_epochs" in how else 0)


def test_a_rollback_takes_the_other_callbacks_back(make):
    """
    What other callbacks have counted of steps that are undone is forgotten: early stopping does
    not end the run for them, and the best metric is that of the checkpoint.
    """

    class Worse(TrainerCallback):
        """Evaluations get worse, and once more after the rollback."""

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
            seen.append(state.global_step)
            metrics["eval_loss"] = 100.0 + len(seen) if len(seen) < 4 else 1.0 / len(seen)

    seen: list[int] = []
    how = {"eval_strategy": "steps", "eval_steps": 4, "metric_for_best_model": "loss"}
    made = make(
        Worse(),
        EarlyStoppingCallback(early_stopping_patience=2),
        Orders(Action.ROLLBACK, at_step=9, onset=6, alarm=7),
        load_best_model_at_end=True,
        **how,
    )

    made.train()

    assert seen == [4, 8, 8, 12, 16, 20]
    assert made.counts.steps[-1] == 20
    assert made.state.best_global_step == 20


def test_a_stop_leaves_nothing_of_the_breach_behind(make, caplog):
    """
    ``train`` returns at the end of the step that was decided. Nothing is logged, evaluated,
    saved or loaded after it, not by an epoch's end either, and a later training starts afresh.
    """
    how = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}

    class Greedy(TrainerCallback):
        """Wants everything at every step."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = control.should_evaluate = state.global_step in (16, 20)

    made = make(Orders(Action.STOP, at_step=19), Greedy(), **how)
    result = made.train()

    assert (result.global_step, made.sla.stopped_at) == (20, 19)
    assert made.counts.events[-1] == "save 16"
    assert checkpoints(made) == [16]
    assert "The best model is not loaded" in caplog.text
    assert made.sla.run_folder == run_folders(Path(made.sla.run_folder).parent)[0]
    made.train()
    assert made.sla.stopped_at is None
    assert len(run_folders(Path(made.sla.run_folder).parent)) == 2


def test_a_restart_ends_the_training_by_an_error(make):
    """
    Where the contract wants the job started again ``train`` raises whatever ``on_stop`` says, so
    that a launcher does so; the last checkpoint is the one from before.
    """
    made = make(Orders(Action.RESTART, at_step=6))

    with pytest.raises(TrainingStoppedError) as stopped:
        made.train()

    assert (stopped.value.action, stopped.value.step) == (Action.RESTART, made.sla.stopped_at)
    assert made.counts.steps[-1] == 7
    assert checkpoints(made) == [4]


def test_without_a_way_back_a_rollback_is_a_stop(make, caplog):
    """
    With no checkpoint yet, training stops at the step at which it should have gone back, and says
    what would have helped.
    """
    made = make(Orders(Action.ROLLBACK, at_step=2, onset=2))

    made.train()

    assert made.sla.stopped_at == 2
    assert "save_steps" in caplog.text
    assert checkpoints(made) == []


def test_an_evaluation_is_no_step_and_no_run(make):
    """
    Evaluation inside of training has limits of its own; an evaluation or a prediction by itself
    opens no run.
    """
    phases: list[Phase] = []

    class Looks(TrainerCallback):
        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            watch = _runs.current()
            phases.append(Phase(watch.recorder.phase) if watch is not None else Phase.DONE)

    made = make(Looks(), max_steps=4, eval_strategy="steps", eval_steps=2)
    made.evaluate()
    made.predict(made.eval_dataset)
    assert phases == [Phase.DONE, Phase.DONE]
    assert made.sla.run_folder is None
    made.train()

    assert phases[2:] == [Phase.EVALUATION] * 2
    folder = Path(made.sla.run_folder)
    made.evaluate()
    assert run_folders(folder.parent) == [folder]


@pytest.mark.thorough
def test_a_trainer_that_lacks_private_names_trains_all_the_same(make, monkeypatch, caplog):
    """
    In a version of the host without them there is no rollback, which is said and becomes a stop;
    everything else works.
    """
    monkeypatch.setattr(_compat_trainer, "_NAMES", (*_compat_trainer._NAMES, "_not_there"))
    made = make(Orders(Action.ROLLBACK, at_step=9, onset=9))

    made.train()

    assert made.sla.stopped_at == 9
    assert caplog.text.count("lacks _not_there") == 2
    assert checkpoints(made) == [4, 8]


@pytest.mark.thorough
def test_an_exception_ends_the_run_with_its_name(make):
    """
    What is raised in the loop is in the ledger, reaches the script, and the next training of the
    same trainer is a run of its own.
    """

    class Raises(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                raise OSError("no more room")

    made = make(Raises(), max_steps=4, contract=WATCHED)
    with pytest.raises(OSError, match="no more room"):
        made.train()

    assert "OSError: no more room" in notes(made)
    made.remove_callback(Raises)
    made.train()
    assert len(run_folders(Path(made.sla.run_folder).parent)) == 2


def test_a_callback_in_the_wrong_place_is_refused(make):
    """
    Two callbacks, one for two trainers, and one that comes after the trainer is set up are
    refused, with what is right.
    """
    with pytest.raises(ValueError, match="two SLATrainerCallbacks"):
        make(SLATrainerCallback())
    made = make(max_steps=1)
    with pytest.raises(ValueError, match="Give each Trainer its own"):
        Trainer(made.model, made.args, callbacks=[made.sla])
    late = Trainer(made.model, made.args, train_dataset=made.train_dataset)
    late.add_callback(SLATrainerCallback())
    with pytest.raises(ValueError, match=r"callbacks=\[SLATrainerCallback\(\)\]"):
        late.train()


def test_a_callback_that_is_removed_lets_the_trainer_go(make, caplog):
    """
    A trainer whose callback was removed trains as one that never had it, with its own
    accelerator and checkpoints, which is said once; added again it watches again.
    """
    made = make(max_steps=4, contract=WATCHED)
    made.train()
    runs = Path(made.sla.run_folder).parent

    made.remove_callback(made.sla)
    made.args.output_dir += "-alone"
    for _ in range(2):
        made.train()
    saved = {path.name for path in Path(made.args.output_dir, "checkpoint-4").iterdir()}
    assert type(made.accelerator) is Accelerator
    assert not [name for name in saved if "sla" in name]
    assert caplog.text.count("was removed: this trainer is not watched") == 1
    assert len(run_folders(runs)) == 1
    made.add_callback(made.sla)
    made.train()

    assert len(run_folders(runs)) == 2


def test_a_changed_import_is_enough(tmp_path, monkeypatch):
    """
    The trainer that stands in for the host's watches without a callback, takes what the
    host's takes in any form, and leaves one of the script's own alone.
    """
    monkeypatch.setenv("SLA_RUN_DIR", str(tmp_path / "runs"))
    own = SLATrainerCallback("L2")
    wanted = trainers.settings(tmp_path / "out", max_steps=2)
    made = SLATrainer(trainers.model(), wanted, None, trainers.Words())
    given = SLATrainer(trainers.model(), wanted, callbacks=[own])
    made.train()

    ours = [
        [one for one in each.callback_handler.callbacks if isinstance(one, SLATrainerCallback)]
        for each in (made, given)
    ]
    assert [len(each) for each in ours] == [1, 1]
    assert ours[1] == [own]
    (folder,) = run_folders(tmp_path / "runs")
    assert ours[0][0].run_folder == folder


@pytest.mark.thorough
def test_an_adapter_of_peft_is_resumed_and_taken_back(make):
    """
    Of a model with an adapter only that is saved; found again tensor by tensor when it is proved,
    and after a rollback and after a resume every loss is that of an unbroken training.
    """
    pytest.importorskip("peft")
    contract = UNWATCHED.override(checkpoint={"verify": "content"})
    plain = make(folder="plain", contract=None, model=trainers.lora())
    plain.train()
    start_afresh()
    back = make(
        Orders(Action.ROLLBACK, at_step=10, onset=9),
        StopsAt(14),
        contract=contract,
        model=trainers.lora(),
        skip_bad_batches=False,
    )
    back.train()
    start_afresh()
    resumed = make(contract=contract, model=trainers.lora())
    resumed.train(resume_from_checkpoint=True)

    assert back.counts.steps[10:13] == [11, 9, 10]
    assert resumed.counts.steps[0] == 13
    assert trainers.losses(resumed) == trainers.losses(plain)
    names = {path.name for path in (Path(back.args.output_dir) / "checkpoint-12").iterdir()}
    assert "adapter_model.safetensors" in names and "model.safetensors" not in names


@pytest.mark.thorough
def test_the_trainer_of_trl_is_one_like_any_other(tmp_path):
    """
    ``SFTTrainer`` with the callback gives the losses that it gives without, and after a rollback
    as well.
    """
    pytest.importorskip("trl")
    plain = trainers.sft(tmp_path / "plain")
    plain.train()
    start_afresh()
    sla = SLATrainerCallback(UNWATCHED, str(tmp_path / "runs"), skip_bad_batches=False)
    back = trainers.sft(tmp_path / "back", Orders(Action.ROLLBACK, at_step=10, onset=9), sla)

    back.train()

    assert trainers.losses(back) == trainers.losses(plain)
    assert sla.stopped_at is None
    assert checkpoints(back) == [4, 8, 12, 16, 20]


@pytest.mark.thorough
def test_a_script_as_it_is_gets_the_callback_from_the_runner(tmp_path):
    """
    Under ``python -m sla_accelerate.run`` a trainer is watched as with the callback, its own
    callback wins, and a stop that the script knows nothing of is an error of ``train``.
    """
    script = Path(trainers.__file__).with_name("trainer_unchanged.py")
    contract = tmp_path / "stops.yaml"
    contract.write_text("level: L1\nrules: {non_finite: {reflex: false, action: stop}}\n")
    env = {**os.environ, "SLA_RUN_DIR": str(tmp_path / "runs"), "SLA_CONTRACT": str(contract)}
    env["SLA_INJECT"] = "nan:step=6"
    command = [sys.executable, "-m", "sla_accelerate.run", str(script), str(tmp_path / "out")]

    ended = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )

    assert ended.returncode == 1, ended
    assert "TrainingStoppedError: The stability contract stopped training" in ended.stderr
    assert "own 4" in ended.stdout.splitlines()
    (_, second) = run_folders(tmp_path / "runs")
    batches = [one.batch for one in read_ring_file(second / "ring-0.bin")]
    assert batches[:5] == [1, 3, 5, 7, 9]
