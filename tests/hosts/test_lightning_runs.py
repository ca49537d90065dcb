"""One callback in several trainings, threads and checkpoints."""

import contextlib
import threading
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import psutil
import pytest
import torch
import toys
from lightning.pytorch.tuner import Tuner

from sla_lightning import SLACallback
from slav1.ledger import read_ledger
from slav1.phase import Phase
from slav1.recorder import read_ring_file

from ._runs import messages, run_folders

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]

NUM_STEPS = 70
"""More than the loss rule needs to say anything."""


class Level(toys.Toy):
    """Its losses lie at a level of their own; may fail half-way."""

    def __init__(self, level: float = 1.0, fails_at: int | None = None) -> None:
        super().__init__(step_s=0.0)
        self.level, self.fails_at = level, fails_at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == self.fails_at:
            raise RuntimeError("the user's own error")
        return self.level + self.loss(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None: ...


def open_things() -> tuple[int, int, list[int]]:
    """Threads, descriptors and children of this process."""
    process = psutil.Process()
    return process.num_threads(), process.num_fds(), [child.pid for child in process.children()]


def kinds(folder: Path) -> list[str]:
    """Kinds of the lines of a run's ledger, without the verdict."""
    lines = read_ledger(folder / "ledger.jsonl")
    return [entry.kind for entry in lines if entry.kind != "verdict"]


@pytest.mark.smoke
def test_each_fit_of_one_trainer_is_a_run_of_its_own(tmp_path: Path) -> None:
    """
    Fit, test, a model of another level, an exception, and a fit again with the same objects:
    each fit has fresh windows and a record of its own, none is taken for a spike, and after
    each the threads, descriptors and children are as before.
    """
    rule = {"mode": "enforce", "action": "stop"}
    callback = SLACallback(toys.contract(loss_variance=rule), run_dir=str(tmp_path))
    trainer = toys.trainer(callback, max_epochs=1)
    first = Level()
    trainer.fit(first, toys.batches(2))
    before = open_things()

    for model in (first, Level(100.0), Level(fails_at=5), first):
        trainer.fit_loop.max_epochs = trainer.current_epoch + 1
        fails = pytest.raises(RuntimeError, match="the user's own error")
        with contextlib.nullcontext() if model.fails_at is None else fails:
            trainer.fit(model, toys.batches(NUM_STEPS))
            trainer.test(model, toys.batches(1), verbose=False)
        assert open_things() == before
        assert callback.stopped_at is None

    folders = run_folders(tmp_path)
    assert [kinds(folder) for folder in folders] == [
        ["start", "end"],
        ["start", "end"],
        ["start", "end"],
        ["start", "first_exception", "end"],
        ["start", "end"],
    ]
    numbers = [len(read_ring_file(folder / "ring-0.bin")) for folder in folders]
    assert numbers == [2, NUM_STEPS, NUM_STEPS, 5, NUM_STEPS]


def test_a_training_outside_of_the_main_thread_can_be_stopped(tmp_path: Path) -> None:
    """
    A fit in a thread of its own runs, stops when the contract says so, and leaves nothing
    that breaks a fit in the main thread after it.
    """
    stop = toys.contract(non_finite={"action": "stop"})
    callback = SLACallback(stop, run_dir=str(tmp_path))
    errors: list[BaseException] = []

    class Spoilt(Level):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch, batch_idx) * (float("nan") if batch_idx == 9 else 1)

    def train(model: pl.LightningModule) -> None:
        try:
            toys.trainer(callback, max_epochs=1).fit(model, toys.batches(400))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
            errors.append(error)

    stops = []
    for _ in range(2):
        thread = threading.Thread(target=train, args=(Spoilt(),))
        thread.start()
        thread.join()
        stops.append(callback.stopped_at)
    train(Level())

    assert errors == []
    assert all(9 <= step < 399 for step in stops)
    assert callback.stopped_at is None
    assert len(run_folders(tmp_path)) == 3


def test_two_callbacks_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """
    A second SLACallback in one trainer is an error that says so; no run is opened.
    """
    callbacks = [SLACallback(run_dir=str(tmp_path)) for _ in range(2)]

    with pytest.raises((RuntimeError, ValueError), match="SLACallback"):
        toys.trainer(*callbacks, max_epochs=1).fit(toys.Toy(), toys.batches(2))

    assert run_folders(tmp_path) == []


def test_ranks_with_different_settings_do_not_begin(ranks: Any) -> None:
    """
    Where one rank's contract is another than rank 0's, no rank trains, no run is opened, and
    both say which rank it is, and which key, with both values.
    """
    ended = ranks("lightning_settings.py", 2, 3)

    said = "Rank 1: rules.hang.limit_s is 3.0, and on rank 0 it is 2.0."
    assert ended.exit_codes == {0: 1, 1: 1}
    assert all(said in ended.err[rank] and not ended.out[rank] for rank in (0, 1)), ended
    assert not ranks.run_dir.exists()


def test_a_fault_that_can_not_be_planned_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A mistake in ``SLA_INJECT`` is told before a run is opened.
    """
    monkeypatch.setenv("SLA_INJECT", "hang:rank=0")
    callback = SLACallback(toys.contract(), run_dir=str(tmp_path))

    with pytest.raises(ValueError, match="step= is missing"):
        toys.trainer(callback, max_epochs=1).fit(toys.Toy(), toys.batches(2))

    assert run_folders(tmp_path) == []


def test_a_save_function_of_the_user_is_given_back(tmp_path: Path) -> None:
    """
    What a user put in place of the trainer's own method is there again after the fit.
    """
    trainer = toys.trainer(SLACallback(toys.contract(), run_dir=str(tmp_path)), max_epochs=1)
    plain = toys.trainer(SLACallback(toys.contract(), run_dir=str(tmp_path)), max_epochs=1)

    def own_save(*_: Any, **__: Any) -> None: ...

    trainer.save_checkpoint = own_save
    for each in (trainer, plain):
        each.fit(toys.Toy(0.0), toys.batches(2))

    assert trainer.save_checkpoint is own_save
    assert "save_checkpoint" not in vars(plain)
    assert "run" not in vars(plain.fit_loop)


def tuned(folder: Path, *, is_watched: bool) -> tuple[list[float], list[Any], list[Phase]]:
    """What two tuners try and find, what the fit after them sees, and the phases of the trials."""
    phases: list[Phase] = []
    losses: list[Any] = []
    callback = SLACallback(toys.contract(), str(folder)) if is_watched else None

    class Seeing(Level):
        lr, batch_size = 0.01, 2

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            losses.append(loss.item())
            if callback is not None and callback._run is not None:
                phases.append(callback._run.recorder.phase)
            return loss

        def train_dataloader(self) -> Any:
            data = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
            items = torch.utils.data.TensorDataset(data, data.sum(1, keepdim=True))
            return torch.utils.data.DataLoader(items, batch_size=self.batch_size, shuffle=True)

        def val_dataloader(self) -> Any:
            return toys.batches(1)

    pl.seed_everything(1, verbose=False)
    model, trainer = Seeing(), toys.trainer(callback, max_epochs=1, default_root_dir=folder)
    found = Tuner(trainer).lr_find(model, num_training=15)
    Tuner(trainer).scale_batch_size(model, max_trials=2, steps_per_trial=2)
    num_tried = len(losses)
    trainer.fit(model)
    assert found is not None
    return [*found.results["loss"], model.batch_size], losses, phases[:num_tried]


def test_tuners_find_what_they_find_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A search for a learning rate or a batch size makes the same trials with the callback, each
    batch of them is progress, and the fit after it is the same.
    """
    # Its bar would leave a thread behind.
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)

    found, losses, phases = tuned(tmp_path / "with", is_watched=True)

    assert (found, losses) == tuned(tmp_path / "without", is_watched=False)[:2]
    assert phases and set(phases) == {Phase.EVALUATION}


class SavesAt(pl.Callback):
    """Saves within the training, at these steps."""

    def __init__(self, folder: Path, *steps: int) -> None:
        self.folder, self.steps = folder, steps

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step in self.steps:
            trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")


def trained(
    folder: Path, *save_at: int, epochs: int = 2, ckpt_path: Path | None = None, **watch: Any
) -> SLACallback | None:
    """Trains epochs of 60 steps, with the callback unless ``is_watched=False``."""
    is_watched = watch.pop("is_watched", True)
    callback = SLACallback(toys.contract(**watch), str(folder / "runs")) if is_watched else None
    trainer = toys.trainer(callback, SavesAt(folder, *save_at), max_epochs=epochs)
    pl.seed_everything(1, verbose=False)
    trainer.fit(Level(), toys.batches(60), ckpt_path=ckpt_path, weights_only=True)
    return callback


def sla_state(path: Path) -> dict[str, Any] | None:
    """The callback's part of a checkpoint, read as a stranger's file would be."""
    found: dict[str, Any] | None = torch.load(path, weights_only=True)["callbacks"].get(
        "SLACallback"
    )
    return found


@pytest.mark.smoke
def test_resuming_changes_no_memory(tmp_path: Path) -> None:
    """
    A run that is saved, loaded and continued has exactly the loss memory of an unbroken one;
    what it saves holds the very last step and only plain types.
    """
    unbroken, resumed = tmp_path / "unbroken", tmp_path / "resumed"
    trained(unbroken, 60, 120)
    trained(resumed, 90, 120, ckpt_path=unbroken / "60.ckpt")

    before, after = sla_state(unbroken / "120.ckpt"), sla_state(resumed / "120.ckpt")
    assert before is not None and after is not None
    assert after["detectors"]["loss_variance"] == before["detectors"]["loss_variance"]
    earlier = sla_state(resumed / "90.ckpt")
    assert earlier is not None
    assert earlier["detectors"]["loss_variance"] != before["detectors"]["loss_variance"]


def test_checkpoints_load_with_and_without_the_callback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    All four combinations of saved and resumed, with and without, train on; with the callback
    on a checkpoint that it did not write, the ledger says that it was not verified, and that
    its windows are empty.
    """
    for name, is_watched in (("with", True), ("without", False)):
        trained(tmp_path / name, 60, epochs=1, is_watched=is_watched)
        for then, is_watched_then in (("with", True), ("without", False)):
            folder = tmp_path / f"{name}-{then}"
            trained(folder, 120, ckpt_path=tmp_path / name / "60.ckpt", is_watched=is_watched_then)
            assert (folder / "120.ckpt").exists()

    assert sla_state(tmp_path / "without" / "60.ckpt") is None
    assert messages(tmp_path / "with-with" / "runs", "notice") == []
    unproved, empty = messages(tmp_path / "without-with" / "runs", "notice")
    assert "without/60.ckpt" in unproved and "not verified" in unproved
    assert "without/60.ckpt" in empty and "empty windows" in empty


def test_a_state_of_a_later_version_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    State that a newer version saved is ignored with a warning, and training goes on.
    """
    trained(tmp_path, 60, epochs=1)
    checkpoint = torch.load(tmp_path / "60.ckpt", weights_only=True)
    checkpoint["callbacks"]["SLACallback"] = {"version": 99, "detectors": {"novel": [1]}}
    torch.save(checkpoint, tmp_path / "newer.ckpt")

    callback = trained(tmp_path / "then", ckpt_path=tmp_path / "newer.ckpt")

    assert "version 99" in caplog.text
    assert callback is not None and callback.stopped_at is None
    assert "empty windows" in messages(tmp_path / "then" / "runs", "notice")[-1]


def test_saved_state_does_not_grow(tmp_path: Path) -> None:
    """
    Once the windows are full, fifty saves in a row hold no more than the first of them.
    """
    trained(tmp_path, 140, *range(141, 191), 191, epochs=4)

    first, last = sla_state(tmp_path / "141.ckpt"), sla_state(tmp_path / "191.ckpt")
    assert len(repr(last)) < 1.02 * len(repr(first))


def test_a_save_after_the_fit_holds_the_memories_too(tmp_path: Path) -> None:
    """
    The usual last line of a script, a save after ``fit``, keeps what the detectors know.
    """
    callback = SLACallback(toys.contract(), str(tmp_path / "runs"))
    trainer = toys.trainer(callback, SavesAt(tmp_path, 60), max_epochs=1)
    trainer.fit(Level(), toys.batches(60))
    trainer.save_checkpoint(tmp_path / "last.ckpt")

    last = sla_state(tmp_path / "last.ckpt")
    assert last is not None
    assert (
        last["detectors"]["loss_variance"]
        == (sla_state(tmp_path / "60.ckpt")["detectors"]["loss_variance"])
    )
