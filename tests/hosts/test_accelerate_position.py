"""A loop goes on where its checkpoint was: the same batches, in the same order, with the same
random numbers, in the loader and outside of it."""

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from sla_accelerate import DataOrderError, SLAAccelerator, TrainingStoppedError, _runs
from sla_accelerate._batches.order import ToldSampler
from slav1.decision import Action
from slav1.recorder.layout import Word
from slav1.session import Session

from ._counting import start_afresh, with_contract

NUM_ITEMS = 12
Record = tuple[int, list[Any]]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate shares its state among all objects of a process; so do we."""
    yield
    start_afresh()


def draws() -> list[float]:
    """A number from each of the global generators."""
    return [torch.rand(()).item(), random.random(), float(np.random.rand())]  # noqa: NPY002


class Noisy(Dataset[Any]):
    """Items that say which they are, with noise."""

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, *draws()])


class Stream(IterableDataset[Any]):
    """The same as a stream."""

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor([index, *draws()]) for index in range(NUM_ITEMS))


class Own(Sampler[int]):
    """A sampler with an order of its own that nobody can restore."""

    order = random.Random(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order.sample(range(NUM_ITEMS), NUM_ITEMS))

    def __len__(self) -> int:
        return NUM_ITEMS


class Loop:
    """A training that writes down what it gets."""

    def __init__(
        self,
        folder: Path,
        seed: int = 1,
        data: Callable[[], Any] = Noisy,
        loader: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        set_seed(seed)
        how = {"shuffle": True} if data is Noisy else {}
        config = DataLoaderConfiguration(**settings.pop("data_loader", {}))
        self.accelerator = with_contract(folder, dataloader_config=config, **settings)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.loader = DataLoader(data(), batch_size=2, **how | (loader or {}))
        self.model, self.optimizer, self.loader = self.accelerator.prepare(
            model, optimizer, self.loader
        )
        self.records: list[Record] = []
        self.after_step: Callable[[int], None] = lambda _: None

    def epoch(self, loader: Any = None) -> None:
        """One pass."""
        for batch in self.loader if loader is None else loader:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(batch).square().mean())
                self.optimizer.step()
                self.optimizer.zero_grad()
            weight = self.model.weight.tolist()
            step = self.accelerator.sla_last_step
            self.records.append((step, [batch.tolist(), draws(), weight]))
            self.after_step(step)

    def train(self, num_epochs: int = 3) -> list[Record]:
        """All of it; returns what was taken."""
        for _ in self.accelerator.sla_epochs(num_epochs):
            self.epoch()
        return self.records


def save_after(loop: Loop, step: int, path: Path) -> None:
    """Lets a loop save once."""

    def save(ended: int) -> None:
        if ended == step:
            loop.accelerator.save_state(path)

    loop.after_step = save


def order(action: Action, *, at_step: int, onset: int, alarm: int) -> None:
    """Writes a decision into the block, as the monitor does."""
    watch = _runs.current()
    assert watch is not None
    words = watch.session._block.words
    words[Word.SCHEDULE_STEP], words[Word.ACTION] = at_step, action
    words[Word.ONSET_STEP], words[Word.ALARM_STEP] = onset, alarm
    words[Word.SCHEDULED] += 1
    words[Word.HOLD] = words[Word.SCHEDULED]


@pytest.mark.smoke
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(0, marks=pytest.mark.thorough),
        4,
        5,
        pytest.param(8, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"data_loader": {"use_seedable_sampler": True}},
        {"data_loader": {"dispatch_batches": True}},
        {"data": Stream},
        {"data": Stream, "data_loader": {"dispatch_batches": True}},
        {"data": Stream, "loader": {"drop_last": True}},
    ],
    ids=["plain", "seedable", "dispatch", "stream", "dispatched stream", "drop last"],
)
def test_a_resumed_loop_is_the_rest_of_the_unbroken_one(tmp_path, how, step):
    """
    Saved after the first batch, in the middle, at the last batch of an epoch and in a later
    epoch: batches, their noise, the loop's random numbers and the weights are the same.
    """
    unbroken = Loop(tmp_path, **how)
    save_after(unbroken, step, tmp_path / "saved")
    whole = unbroken.train()
    start_afresh()

    resumed = Loop(tmp_path, seed=9, **how)
    resumed.accelerator.load_state(tmp_path / "saved")

    assert resumed.train() == whole[step + 1 :]
    assert len(whole) == 3 * NUM_ITEMS / 2


def test_accumulated_gradients_are_made_of_the_same_batches(tmp_path):
    """
    With two batches a step, saved at the end of a step: the rest is the same, and so is the
    place of the next update.
    """
    unbroken = Loop(tmp_path, gradient_accumulation_steps=2)
    saved: list[int] = []

    def save(step: int) -> None:
        if step == 3 and not saved:
            unbroken.accelerator.save_state(tmp_path / "saved")
            saved.append(len(unbroken.records))

    unbroken.after_step = save
    whole = unbroken.train()
    start_afresh()

    resumed = Loop(tmp_path, seed=9, gradient_accumulation_steps=2)
    resumed.accelerator.load_state(tmp_path / "saved")

    assert resumed.train() == whole[saved[0] :]
    assert whole[-1][0] == 8


def test_a_loop_saved_between_epochs_goes_on_with_the_next(tmp_path):
    """
    Saved after an epoch, by a loop of range(): the rest is the same in a new process.
    """
    unbroken = Loop(tmp_path)
    unbroken.epoch()
    unbroken.accelerator.save_state(tmp_path / "saved")
    unbroken.epoch()
    start_afresh()

    resumed = Loop(tmp_path, seed=9)
    resumed.accelerator.load_state(tmp_path / "saved")
    resumed.epoch()

    assert resumed.records == unbroken.records[6:]


@pytest.mark.slow
def test_worker_processes_bring_the_same_order(tmp_path):
    """
    With worker processes the order of the batches and the loop's own random numbers are the
    same, also when the workers live on from epoch to epoch.
    """
    how = {"loader": {"num_workers": 1, "persistent_workers": True}}
    unbroken = Loop(tmp_path, **how)
    save_after(unbroken, 7, tmp_path / "saved")
    whole = unbroken.train()
    start_afresh()

    resumed = Loop(tmp_path, seed=9, **how)
    resumed.accelerator.load_state(tmp_path / "saved")
    rest = resumed.train()

    items = [[step, [row[0] for row in batch], noise] for step, (batch, noise, _) in whole]
    assert [[s, [row[0] for row in b], n] for s, (b, n, _) in rest] == items[8:]


def test_a_loop_that_skips_for_itself_gets_the_same(tmp_path):
    """
    The way of Accelerate's examples still works: skip_first_batches after load_state gives
    the rest of the epoch, and the next epoch is the next one.
    """
    unbroken = Loop(tmp_path, data_loader={"use_seedable_sampler": True})
    save_after(unbroken, 3, tmp_path / "saved")
    whole = unbroken.train(2)
    start_afresh()

    resumed = Loop(tmp_path, data_loader={"use_seedable_sampler": True})
    resumed.accelerator.load_state(tmp_path / "saved")
    resumed.epoch(resumed.accelerator.skip_first_batches(resumed.loader, 4))
    resumed.epoch()

    assert resumed.records == whole[4:]


def test_an_order_that_can_not_be_had_again_is_an_error(tmp_path):
    """
    A sampler with a generator of its own brings another order: that is found by its first
    batches, and the error says what to use instead.
    """
    unbroken = Loop(tmp_path, data=Noisy, loader={"sampler": Own(), "shuffle": False})
    save_after(unbroken, 3, tmp_path / "saved")
    unbroken.train(1)
    start_afresh()

    resumed = Loop(tmp_path, loader={"sampler": Own(), "shuffle": False})
    resumed.accelerator.load_state(tmp_path / "saved")

    with pytest.raises(DataOrderError, match="use_seedable_sampler=True"):
        resumed.train(1)


def test_a_loop_that_asks_for_another_epoch_gets_it(tmp_path, caplog):
    """
    set_epoch after load_state is the loop's own word: it wins, and that is said.
    """
    unbroken = Loop(tmp_path)
    save_after(unbroken, 3, tmp_path / "saved")
    unbroken.train(1)
    start_afresh()

    resumed = Loop(tmp_path)
    resumed.accelerator.load_state(tmp_path / "saved")
    resumed.loader.set_epoch(5)
    resumed.epoch()

    assert len(resumed.records) == 6
    assert "epoch 0, batch 4" in caplog.text


@pytest.mark.parametrize("loops", ["sla_epochs", "range"])
@pytest.mark.parametrize(("at_step", "onset"), [(4, 3), (7, 5), (11, 9)])
def test_a_rollback_brings_the_loop_back(tmp_path, loops, at_step, onset):
    """
    Rolled back within an epoch, over the end of one, and at the end of one: the loop's own
    ``for`` goes on at the checkpoint, and the steps up to the bad one are as they were. The
    bad steps' batches come no more, and the others come once.
    """
    unbroken = Loop(tmp_path, data_loader={"use_seedable_sampler": True})
    whole = unbroken.train()
    start_afresh()

    loop = Loop(tmp_path, data_loader={"use_seedable_sampler": True})
    rolled: list[int] = []

    def after_step(step: int) -> None:
        if step == 2 and not rolled:
            loop.accelerator.save_state(tmp_path / "saved")
        if step == at_step - 1 and not rolled:
            rolled.append(len(loop.records) + 1)
            order(Action.ROLLBACK, at_step=at_step, onset=onset, alarm=at_step)

    loop.after_step = after_step
    if loops == "range":
        for _ in range(3):
            loop.epoch()
    else:
        loop.train()

    again = loop.records[rolled[0] :]
    # The loop's own numbers come from the generator that the data set draws from, too, and
    # while the last of these steps is made the batch after the bad ones is fetched already.
    assert again[: onset - 4] == whole[3 : onset - 1] or onset == 3
    assert [(s, b, w) for s, (b, _, w) in again[: onset - 3]] == [
        (s, b, w) for s, (b, _, w) in whole[3:onset]
    ]
    items = [[row[0] for row in batch] for _, (batch, _, _) in whole]
    assert [[row[0] for row in batch] for _, (batch, _, _) in again] == [
        *items[3:onset],
        *items[at_step + 1 :],
    ]
    assert [step for step, _ in again] == list(range(3, 3 + len(again)))


def test_what_is_newer_is_set_aside_before_a_rank_says_it_is_back(tmp_path, monkeypatch):
    """
    Once training is said to go on from a checkpoint, no later start can find a newer one from
    after the harm.
    """
    loop = Loop(tmp_path, data_loader={"use_seedable_sampler": True})
    is_there: list[bool] = []
    rolled_back = Session.rolled_back

    def say_back(session: Session, *args: Any) -> None:
        is_there.append((tmp_path / "bad").exists())
        rolled_back(session, *args)

    def after_step(step: int) -> None:
        if step == 2 and not is_there:
            loop.accelerator.save_state(tmp_path / "good")
        if step == 3 and not is_there:
            loop.accelerator.save_state(tmp_path / "bad")
            order(Action.ROLLBACK, at_step=4, onset=3, alarm=4)

    monkeypatch.setattr(Session, "rolled_back", say_back)
    loop.after_step = after_step
    loop.train(1)

    assert is_there == [False]
    assert (tmp_path / "good").exists()


def test_a_checkpoint_after_a_rollback_knows_what_is_left_out(tmp_path):
    """
    A run that ends between a rollback and the bad batches leaves them out in its next start.
    """
    loop = Loop(tmp_path, data_loader={"use_seedable_sampler": True})
    loop.accelerator.save_state(tmp_path / "first")
    items: list[list[float]] = []

    def after_step(step: int) -> None:
        items.append([row[0] for row in loop.records[-1][1][0]])
        if len(items) == 4:
            order(Action.ROLLBACK, at_step=4, onset=3, alarm=3)
        if len(items) == 6:
            loop.accelerator.save_state(tmp_path / "second")

    loop.after_step = after_step
    loop.train(1)
    start_afresh()
    resumed = Loop(tmp_path, data_loader={"use_seedable_sampler": True})
    resumed.accelerator.load_state("last_good")
    rest = [[row[0] for row in batch] for _, (batch, _, _) in resumed.train(1)]

    bad = items[3]
    assert items.count(bad) == 1 and bad not in rest
    assert rest == items[6:]


@pytest.mark.parametrize("has_loader", [True, False])
def test_a_run_that_can_not_go_back_stops(tmp_path, caplog, has_loader):
    """
    With no checkpoint yet, or where the loop brings its batches by itself, a rollback is a
    stop, and it is said why.
    """
    loop = Loop(tmp_path)
    ordered = partial(order, Action.ROLLBACK, at_step=2, onset=2, alarm=2)
    loop.after_step = lambda step: ordered() if step == 1 else None
    with pytest.raises(TrainingStoppedError, match="end of step 2"):
        loop.epoch(None if has_loader else [torch.rand(2, 4) for _ in range(4)])

    assert len(loop.records) == (3 if has_loader else 2)
    assert ("no checkpoint yet" if has_loader else "prepared loader") in caplog.text


def test_what_is_kept_of_a_position_is_plain(tmp_path):
    """
    The file of each rank is JSON and small, whatever the length of the epoch.
    """
    loop = Loop(tmp_path)
    save_after(loop, 4, tmp_path / "saved")
    loop.train(1)

    file = tmp_path / "saved" / "sla_position_0.json"
    assert json.loads(file.read_text())["loaders"][0]["num_handed"] == 5
    assert file.stat().st_size < 64_000
    assert isinstance(loop.accelerator, SLAAccelerator)


def test_an_order_drawn_late_loses_no_batch() -> None:
    """
    What worker processes were handed before the order is drawn and what they are handed after
    that is the whole order, each once.
    """
    told = ToldSampler(range(4), lambda: SimpleNamespace(indices=iter))  # type: ignore[arg-type,return-value]
    handed = iter(told)

    first = next(handed)
    told.prime()

    assert [first, *(next(handed) for _ in range(3))] == [0, 1, 2, 3]
