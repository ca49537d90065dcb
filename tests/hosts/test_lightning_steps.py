"""What SLACallback records of real trainings with one process."""

import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import toys
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.plugins import MixedPrecision

from sla_lightning import SLACallback
from slav1.recorder import read_ring_file
from slav1.sample import Sample

from ._runs import entries

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


class Remembers(toys.Toy):
    """Keeps the raw loss of every batch."""

    def __init__(self) -> None:
        super().__init__(step_s=0.0)
        self.raw: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.raw.append(loss.item())
        return loss


def fit(run_dir: Path, model: pl.LightningModule, loader: Any, **settings: Any) -> list[Sample]:
    """Trains under watch; returns what was recorded."""
    callback = SLACallback(toys.contract(), run_dir=str(run_dir))
    toys.trainer(callback, **settings).fit(model, loader)
    assert callback.run_folder is not None
    return read_ring_file(callback.run_folder / "ring-0.bin")


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.smoke
def test_a_step_has_the_mean_loss_of_its_micro_batches(tmp_path: Path) -> None:
    """
    Under gradient accumulation there is one record an optimizer step, with the mean of the
    raw losses, also for the last, incomplete window of an epoch.
    """
    model = Remembers()

    samples = fit(tmp_path, model, toys.batches(10), max_epochs=2, accumulate_grad_batches=4)

    windows = [model.raw[i:j] for i, j in ((0, 4), (4, 8), (8, 10), (10, 14), (14, 18), (18, 20))]
    assert [sample.step for sample in samples] == [0, 1, 2, 3, 4, 5]
    assert [sample.loss for sample in samples] == pytest.approx(list(map(mean, windows)))
    assert [sample.batch for sample in samples] == [3, 7, 9, 13, 17, 19]


class TwoOptimizers(Remembers):
    """Steps two optimizers by hand in each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.second = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer, layer in zip(self.optimizers(), (self.linear, self.second), strict=True):
            loss = torch.nn.functional.mse_loss(layer(batch[0]), batch[1])
            self.raw.append(loss.item())
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        layers = (self.linear, self.second)
        return [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in layers]


def test_manual_optimization_has_one_record_a_batch(tmp_path: Path) -> None:
    """
    Two optimizers that step in each batch make one record a batch, under the number of the
    last step, with the mean of both losses.
    """
    model = TwoOptimizers()

    samples = fit(tmp_path, model, toys.batches(5), max_epochs=1)

    pairs = [model.raw[i : i + 2] for i in range(0, 10, 2)]
    assert [sample.step for sample in samples] == [1, 3, 5, 7, 9]
    assert [sample.loss for sample in samples] == pytest.approx(list(map(mean, pairs)))


def test_steps_under_a_gradient_scaler_say_so(tmp_path: Path) -> None:
    """
    Where the host's precision has a gradient scaler, each record says that one is at work.
    """
    scaled = MixedPrecision("16-mixed", device="cpu", scaler=torch.amp.GradScaler("cpu"))

    samples = fit(tmp_path, Remembers(), toys.batches(3), max_epochs=1, plugins=[scaled])

    assert [sample.is_scaled for sample in samples] == [True, True, True]


def test_a_batch_without_a_loss_is_no_error(tmp_path: Path) -> None:
    """
    A training step may skip its batch by returning None: the step is recorded without loss.
    """

    class Skips(Remembers):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor | None:
            return None if batch_idx == 2 else super().training_step(batch, batch_idx)

    samples = fit(tmp_path, Skips(), toys.batches(5), max_epochs=1)

    assert [sample.loss is None for sample in samples] == [False, False, True, False, False]


class SlowValidation(toys.Toy):
    """Validates for longer than a step may last."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        time.sleep(0.4)


def test_validation_is_no_part_of_a_step_and_no_hang(tmp_path: Path) -> None:
    """
    Neither the sanity check nor a validation within or at the end of an epoch counts as a
    step that is too long, in the records or in the ledger.
    """
    callback = SLACallback(
        toys.contract(limit_s=0.3, hang={"min_limit_s": 0.2, "warmup_steps": 1}),
        run_dir=str(tmp_path),
    )
    trainer = toys.trainer(callback, max_epochs=2, num_sanity_val_steps=1, val_check_interval=20)

    trainer.fit(SlowValidation(), toys.batches(40), toys.batches(1))

    samples = read_ring_file(callback.run_folder / "ring-0.bin")
    assert len(samples) == 80
    assert max(sample.step_time_s for sample in samples if not sample.is_warmup) < 0.4
    assert entries(tmp_path, "incident_begin", rule="hang") == []


def test_a_dry_run_is_watched_like_any_other(tmp_path: Path) -> None:
    """
    With ``fast_dev_run`` there is a run, its record and its ledger, and nothing is reported.
    """
    samples = fit(tmp_path, toys.Toy(0.0), toys.batches(5), fast_dev_run=2)

    assert [sample.step for sample in samples] == [0, 1]
    assert entries(tmp_path, "breach") == []
    assert len(entries(tmp_path, "end")) == 1


class Keeps(Logger):
    """A user's own logger."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []
        self.endings: list[str] = []

    name, version = "keeps", 0

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, metrics))

    def finalize(self, status: str) -> None:
        self.endings.append(status)


@pytest.mark.smoke
def test_every_logger_gets_the_step_times_as_often_as_the_host_logs(tmp_path: Path) -> None:
    """
    Each of the user's loggers gets the times of a step under ``sla/``, at the steps at which
    Lightning logs, and at no other.
    """
    keeps, csv = Keeps(), CSVLogger(tmp_path / "csv", flush_logs_every_n_steps=1)

    samples = fit(
        tmp_path / "runs",
        toys.Toy(0.0),
        toys.batches(24),
        max_epochs=1,
        accumulate_grad_batches=2,
        logger=[keeps, csv],
        log_every_n_steps=5,
    )

    ours = {step: row for step, row in keeps.rows if "sla/step_time_s" in row}
    assert list(ours) == [4, 9]
    assert ours[9] == {
        "sla/step_time_s": samples[9].step_time_s,
        "sla/data_time_s": samples[9].data_s,
        "sla/self_time_s": samples[9].self_time_s,
    }
    header = Path(csv.log_dir, "metrics.csv").read_text().splitlines()[0]
    assert {"sla/step_time_s", "sla/data_time_s", "sla/self_time_s"} <= set(header.split(","))
    assert keeps.endings == ["success"]


@pytest.mark.parametrize("what", ["module", "part"])
def test_compiled_models_are_recorded_like_others(tmp_path: Path, what: str) -> None:
    """
    A compiled module, or a module with a compiled part, has the same records.
    """
    model: Any = toys.Toy(0.0)
    if what == "part":
        model.linear.compile(backend="eager")
    else:
        model = torch.compile(model, backend="eager")

    samples = fit(tmp_path, model, toys.batches(8), max_epochs=1)

    plain = fit(tmp_path / "plain", toys.Toy(0.0), toys.batches(8), max_epochs=1)
    assert [sample.step for sample in samples] == [sample.step for sample in plain]
    assert all(sample.loss is not None for sample in samples)


def test_a_compiled_step_survives_planned_faults(tmp_path: Path, monkeypatch: Any) -> None:
    """
    Fault injection gives a compiled module back the training step that it had.
    """
    monkeypatch.setenv("SLA_INJECT", "jump:rank=0,step=3")
    model: Any = torch.compile(toys.Toy(0.0), backend="eager")

    samples = fit(tmp_path, model, toys.batches(8), max_epochs=1)

    assert samples[3].loss > 5 * samples[2].loss
    left = vars(model._orig_mod)["training_step"]
    assert (left.__name__, left.__module__) == ("training_step", toys.__name__)


def test_other_stages_are_not_watched(tmp_path: Path) -> None:
    """
    Validating, testing and predicting with the callback there opens no run.
    """

    class Whole(toys.Toy):
        def test_step(self, batch: Any, batch_idx: int) -> None: ...

        def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.linear(batch[0])

    trainer = toys.trainer(SLACallback(toys.contract(), run_dir=str(tmp_path / "runs")))

    trainer.validate(Whole(), toys.batches(2), verbose=False)
    trainer.test(Whole(), toys.batches(2), verbose=False)
    trainer.predict(Whole(), toys.batches(2))

    assert not (tmp_path / "runs").exists()
