"""Resume in Lightning: every batch and every random number as without the interruption."""

# ruff: noqa: NPY002 - the global generator of numpy is what has to go on where it was

import random
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import toys
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sla_lightning import SLACallback
from slav1.seeds import put_back, take

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]

NUM_BATCHES = 8
NUM_EPOCHS = 3


class Noisy(Dataset[Tensor]):
    """Numbers with noise from two generators, drawn anew each time, in a worker if there are."""

    def __len__(self) -> int:
        return 2 * NUM_BATCHES

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index), float(torch.rand(())), random.random()])


class Recording(pl.LightningModule):
    """Dropout over noisy data; writes down what it sees and what becomes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.seen: list[Any] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = nn.functional.dropout(self.linear(batch / 16), 0.5).pow(2).mean()
        where = (self.trainer.global_step, self.trainer.current_epoch, batch_idx)
        rate = self.optimizers().param_groups[0]["lr"]
        self.seen.append((*where, batch.tolist(), loss.item(), rate, np.random.rand()))
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None: ...

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


def train(
    folder: Path, limits: dict[str, int], num_workers: int, val_every: int | None, **how: Any
) -> list[Any]:
    """Returns what a training saw."""
    pl.seed_everything(how.pop("seed", 1), verbose=False)
    save_as = how.pop("save_as", None)
    data = DataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=num_workers)
    savers = [
        ModelCheckpoint(folder, filename="{step}", every_n_train_steps=4, save_top_k=-1),
        ModelCheckpoint(folder, filename="epoch-{epoch}", every_n_epochs=1, save_top_k=-1),
    ]
    callback = SLACallback(toys.contract(monitor={"kind": "off"}), run_dir=str(folder / "runs"))
    trainer = toys.trainer(
        callback,
        *savers,
        enable_checkpointing=True,
        val_check_interval=val_every,
        limit_val_batches=0 if val_every is None else 2,
        **limits,
    )
    model = Recording()
    validation = None if val_every is None else DataLoader(Noisy(), batch_size=2)
    trainer.fit(model, data, validation, **how)
    if save_as is not None:
        trainer.save_checkpoint(folder / save_as)
    return model.seen


@pytest.mark.parametrize(
    ("limits", "num_workers", "val_every"),
    [
        ({"max_steps": 21}, 0, 4),
        pytest.param({"max_steps": 21}, 2, None, marks=pytest.mark.thorough),
        pytest.param({"max_epochs": NUM_EPOCHS}, 0, None, marks=pytest.mark.thorough),
        ({"max_epochs": NUM_EPOCHS}, 2, 8),
    ],
    ids=["steps-validating", "steps-workers", "epochs", "epochs-workers-validating"],
)
def test_a_resumed_training_sees_what_an_unbroken_one_sees(
    tmp_path: Path, limits: dict[str, int], num_workers: int, val_every: int | None
) -> None:
    """
    From a checkpoint half-way through an epoch, with a validation still to come, at its last
    batch, and at its end: the same batches in the same order, the same noise of every
    generator, the same losses and learning rates, in the same epochs; not one batch too many,
    and none at all where training had come to its end.
    """
    unbroken = train(tmp_path / "a", limits, num_workers, val_every)

    names = ["step=4.ckpt", "step=8.ckpt", "epoch-epoch=0.ckpt"]
    if "max_epochs" in limits:
        names += [f"step={NUM_EPOCHS * NUM_BATCHES}.ckpt", f"epoch-epoch={NUM_EPOCHS - 1}.ckpt"]
    for number, name in enumerate(names):
        path = tmp_path / "a" / name
        num_done = torch.load(path, weights_only=True)["global_step"]
        folder = tmp_path / f"b{number}"
        how = {"ckpt_path": path, "seed": 99}
        resumed = train(folder, limits, num_workers, val_every, **how)
        assert resumed == unbroken[num_done:], name


def test_a_training_that_is_over_is_extended(tmp_path: Path) -> None:
    """
    From a checkpoint saved after a fit more epochs are made: those that a longer fit would have
    made, or, where a number of steps ended it within an epoch, whole ones as the host counts.
    """
    unbroken = train(tmp_path / "a", {"max_epochs": 3}, 0, None)
    for name, limits in (("whole", {"max_epochs": 2}), ("within", {"max_steps": 5})):
        train(tmp_path / name, limits, 0, None, save_as="after.ckpt")
    after = [
        train(tmp_path / f"{name}-on", limits, 0, None, seed=2, ckpt_path=tmp_path / name / file)
        for name, limits, file in (
            ("whole", {"max_epochs": 3}, "after.ckpt"),
            ("within", {"max_epochs": 2}, "after.ckpt"),
        )
    ]

    assert after[0] == unbroken[2 * NUM_BATCHES :]
    assert [seen[:3] for seen in after[1]] == [(5 + n, 1, n) for n in range(NUM_BATCHES)]


def test_random_states_survive_a_checkpoint(tmp_path: Path) -> None:
    """
    All generators go on where they were, half a pair of normal numbers included, from values
    that the restricted loader takes.
    """

    def draw() -> tuple[float, ...]:
        numbers = (random.random(), random.gauss(0, 1), np.random.randn(), np.random.rand())
        return (*map(float, numbers), float(torch.rand(())))

    random.gauss(0, 1)
    np.random.randn()
    torch.save(take(), tmp_path / "state")
    first = draw()
    draw()

    put_back(torch.load(tmp_path / "state", weights_only=True))

    assert draw() == first
    with pytest.raises(ValueError, match="version 7"):
        put_back({"version": 7})
