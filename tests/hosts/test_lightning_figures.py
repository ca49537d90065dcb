"""The service-level figures in a Lightning training: logged, saved, resumed."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger

from sla_lightning import SLACallback
from slav1.metrics import Availability, LossVariance, of_run

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


class Keeps(Logger):
    """Remembers what was logged."""

    name = "keeps"
    version = 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


class Counts(toys.Toy):
    """Logs its own figures."""

    def __init__(self) -> None:
        super().__init__(step_s=0.0)
        self.noise = LossVariance()
        self.in_time = Availability()
        self.whole = Availability()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.noise.update(loss)
        self.in_time(batch_idx > 0)
        self.whole.update(True)
        self.log("sla/loss_variance", self.noise, on_step=False, on_epoch=True)
        self.log("sla/in_time", self.in_time, on_step=True, on_epoch=True)
        return loss


def test_figures_are_logged_saved_and_resumed(tmp_path: Path) -> None:
    """
    A module's figures reach the user's logger by ``self.log``, begin anew with each epoch if
    logged so, and those that are not go on after a resume; ``log_figures`` adds those of the
    rank at the steps at which Lightning logs; ``of_run`` reads them from the run afterwards.
    """
    keeps, csv = Keeps(), CSVLogger(tmp_path / "csv", flush_logs_every_n_steps=1)
    saves = ModelCheckpoint(tmp_path / "saved", save_last=True)
    callback = SLACallback(toys.contract(), run_dir=str(tmp_path / "runs"), log_figures=True)
    trainer = toys.trainer(
        callback,
        saves,
        max_epochs=2,
        logger=[keeps, csv],
        log_every_n_steps=5,
        enable_checkpointing=True,
    )
    model = Counts()

    trainer.fit(model, toys.batches(10))

    ours = {step: row for step, row in keeps.rows if "sla/useful_time_ratio" in row}
    assert list(ours) == [4, 9, 14, 19]
    assert all(0.0 < row["sla/useful_time_ratio"] <= 1.0 for row in ours.values())
    assert ours[19]["sla/loss_variance"] > 0.0
    epochs = [row for _, row in keeps.rows if "sla/in_time_epoch" in row]
    assert [row["sla/in_time_epoch"] for row in epochs] == [pytest.approx(0.9)] * 2
    assert all(row["sla/loss_variance"] > 0.0 for row in epochs)
    steps = [row["sla/in_time_step"] for _, row in keeps.rows if "sla/in_time_step" in row]
    assert steps == [pytest.approx(0.8), pytest.approx(0.9)] * 2
    header = Path(csv.log_dir, "metrics.csv").read_text().splitlines()[0]
    assert {"sla/in_time_epoch", "sla/useful_time_ratio"} <= set(header.split(","))
    told = {name: value.item() for name, value in of_run(tmp_path / "runs").compute().items()}
    assert told["availability"] == told["checkpoint_success"] == 1.0
    assert told["loss_variance"] > 0.0 and math.isnan(told["memory_slope_mib"])

    again = Counts()
    toys.trainer(None, max_epochs=3).fit(
        again, toys.batches(10), ckpt_path=tmp_path / "saved" / "last.ckpt", weights_only=True
    )

    assert again.whole.num_beats.tolist() == [30, 30]
