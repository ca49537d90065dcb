"""What the training scripts share: a tiny model, a quiet trainer, a short contract."""

import json
import time
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sla_lightning import SLACallback
from slav1.contract import Contract

warnings.filterwarnings("ignore")


class Toy(pl.LightningModule):
    """A linear model whose step takes as long as it is told."""

    def __init__(self, step_s: float = 0.01) -> None:
        super().__init__()
        self.step_s = step_s
        self.linear = nn.Linear(4, 1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        time.sleep(self.step_s)
        return self.loss(batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.loss(batch)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean square error; a tensor with one element."""
        inputs, targets = batch
        return nn.functional.mse_loss(self.linear(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def batches(num: int, *, num_ranks: int = 1, seed: int = 0) -> DataLoader[Any]:
    """A loader with ``num`` batches of two a rank, the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(2 * num * num_ranks, 4, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=2)


def contract(*, limit_s: float = 2.0, **clauses: Any) -> Contract:
    """L1 with a short hang limit."""
    hang = {"limit_s": limit_s, "first_step_limit_s": 60.0} | clauses.pop("hang", {})
    monitor = {"grace_s": 1.0} | clauses.pop("monitor", {})
    return Contract.level("L1").override(hang=hang, monitor=monitor, **clauses)


def trainer(callback: SLACallback | None, *others: pl.Callback, **settings: Any) -> pl.Trainer:
    """A trainer on this machine's processor that says nothing and writes nothing."""
    quiet = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    callbacks = [*([] if callback is None else [callback]), *others]
    return pl.Trainer(callbacks=callbacks, **quiet | settings)


def tell(name: str, **values: Any) -> None:
    """Writes one line that the test reads back."""
    print(json.dumps({"tell": name, **values}), flush=True)
