"""Micro-batches that are run twice."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from slav1.replicas import MicrobatchReplay, Replayed


class Faulty(nn.Module):
    """A layer that computes wrongly in the runs that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)
        # Attributes of its own are put back before a second run; what lies deeper is not.
        self.count = SimpleNamespace(runs=0)
        self.bad_runs: set[int] = set()
        self.error: float | None = None
        self.noise = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        self.count.runs += 1
        out: Tensor = self.linear(inputs)
        if self.count.runs in self.bad_runs:
            # One wrong number, by the least that float32 knows unless told otherwise.
            wrong = out.detach().clone()
            least = torch.nextafter(wrong[0, 0], wrong[0, 0] + 1)
            wrong[0, 0] = least if self.error is None else wrong[0, 0] + self.error
            out = out + (wrong - out.detach())
        if self.noise:
            out = out * (1 + self.noise * (self.count.runs % 3))
        return out


class Training:
    """A small training with dropout and a batch norm."""

    def __init__(self, ratio: float = 1.0) -> None:
        torch.manual_seed(3)
        self.faulty = Faulty()
        self.model = nn.Sequential(self.faulty, nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.told: list[str] = []
        self.replay = MicrobatchReplay(self.model, ratio=ratio, tell=self.told.append)
        self.replays: list[Replayed] = []

    def run(self, steps: range, replay: bool = True) -> None:
        for step in steps:
            inputs = torch.randn(6, 4)

            def compute(inputs: Tensor = inputs) -> Tensor:
                return self.model(inputs).square().mean()

            chosen = replay and self.replay.begin(step)
            compute().backward()
            # Between the runs something else draws a number too.
            torch.rand(1)
            if chosen and (done := self.replay.end(compute)) is not None:
                self.replays.append(done)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def weights(self) -> list[Tensor]:
        return [value.clone() for value in self.model.state_dict().values()]


def test_a_healthy_training_repeats_and_is_not_changed() -> None:
    """
    Gradients repeat bit for bit, dropout and running statistics included, and the training
    is the one that it would have been without.
    """
    with_replay = Training()
    with_replay.run(range(20))
    without = Training()
    without.run(range(20), replay=False)

    assert with_replay.replay.is_exact
    assert [one.differing for one in with_replay.replays] == [()] * 19
    assert all(map(torch.equal, with_replay.weights(), without.weights()))
    assert with_replay.told == []


@pytest.mark.parametrize(("bad_run", "wrong"), [(8, "first"), (9, "second")])
def test_one_wrong_number_is_found(bad_run: int, wrong: str) -> None:
    """
    A single number that comes out wrong by the least amount is found in the gradients, and a
    third run tells which of the first two was wrong.
    """
    training = Training()
    # Three runs of the first micro-batch, two of each later one.
    training.faulty.bad_runs = {bad_run}
    training.run(range(5))

    wrong_ones = [one for one in training.replays if one.differing]
    assert [(one.step, one.wrong, one.is_exact) for one in wrong_ones] == [(3, wrong, True)]
    assert training.replay.num_differing == 1


def test_what_does_not_repeat_is_compared_with_a_tolerance() -> None:
    """
    Where honest runs differ, that is said, small differences are not told, and a gross one
    is.
    """
    training = Training()
    training.faulty.noise = 1e-4
    training.run(range(6))
    assert not training.replay.is_exact
    assert [one.differing for one in training.replays] == [()] * 5
    training.faulty.bad_runs, training.faulty.error = {training.faulty.count.runs + 2}, 1e4
    training.run(range(6, 7))

    assert training.replays[-1].differing
    assert "do not repeat bit for bit" in training.told[0]


def test_what_keeps_something_between_runs_is_left_alone() -> None:
    """
    A computation that gives other gradients the second time, and then the same again, is
    not replayed, and that is said.
    """
    training = Training()
    training.faulty.bad_runs = {1}
    training.run(range(4))

    assert training.replays == []
    assert not training.replay.is_on
    assert "something is kept between runs" in training.told[0]


def test_the_share_is_kept_and_the_same_on_all_ranks() -> None:
    """
    As many micro-batches are chosen as the ratio says, and every rank chooses the same.
    """
    chosen = []
    for _ in range(2):
        replay = MicrobatchReplay(nn.Linear(2, 1), ratio=0.05)
        replay.is_exact = True
        chosen.append([step for step in range(4000) if replay.begin(step)])
        replay.cancel()

    assert chosen[0] == chosen[1]
    assert 150 < len(chosen[0]) < 250


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MicrobatchReplay(nn.Linear(1, 1), ratio=0.0), "ratio must be above 0"),
        (lambda: MicrobatchReplay(nn.SyncBatchNorm(2), ratio=0.1), "talks to other ranks"),
    ],
)
def test_refuses_what_it_can_not_do(make: Callable[[], Any], said: str) -> None:
    """
    A share of nothing and a model that talks in its forward are refused.
    """
    with pytest.raises(ValueError, match=said):
        make()
