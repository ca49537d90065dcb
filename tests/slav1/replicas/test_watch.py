"""When a rank looks at its copies, and what it says of them."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slav1.contract import Contract
from slav1.replicas import Copy, Found, ReplicaWatch
from slav1.replicas._copy_set import SLOT_BYTES
from slav1.session.messages import Copies, Digests
from slav1.testing._memory import flip_bit


@dataclass
class FakeSession:
    """A session of one of two ranks that keeps what is said."""

    rank: int = 0
    contract: Contract = field(
        default_factory=lambda: Contract.level("L1").override(replica_divergence={"every_steps": 4})
    )
    peers: Any = field(default_factory=lambda: SimpleNamespace(world_size=2))
    said: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def tell(self, message: Any) -> None:
        self.said.append(message)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def digests(self) -> list[Digests]:
        return [one for one in self.said if isinstance(one, Digests)]


class Training:
    """Some tensors that two ranks hold."""

    def __init__(self, sizes: tuple[int, ...] = (6, 10), **found: Any) -> None:
        self.tensors = [torch.zeros(size) for size in sizes]
        self.found = found
        self.untrained: tuple[int, ...] = ()

    def find(self) -> Found:
        copies = [
            Copy(
                name=f"p{number}",
                kind="parameter",
                ranks=(0, 1),
                tensor=tensor,
                is_trained=number not in self.untrained,
            )
            for number, tensor in enumerate(self.tensors)
        ]
        return Found(copies=copies, **self.found)


def train(watch: ReplicaWatch, first: int, num_steps: int) -> None:
    """Makes steps as a host does."""
    for step in range(first, first + num_steps):
        if step >= watch.due_step:
            watch.look(step)


def test_looks_at_the_first_step_and_then_every_few() -> None:
    """
    Everything is looked at after the first step, and again whenever the number of steps is
    due; what is compared is said once, with names by the lowest rank only.
    """
    session, other = FakeSession(), FakeSession(rank=1)
    for one in (session, other):
        watch = ReplicaWatch(one, Training().find)
        watch.begin(-1)
        train(watch, 0, 13)

    assert [one.step for one in session.digests()] == [0, 4, 8, 12]
    assert len({one.values for one in session.digests()[::2]}) == 1
    assert [one.values for one in session.digests()] == [one.values for one in other.digests()]
    (said,) = [one for one in session.said if isinstance(one, Copies)]
    (said_by_other,) = [one for one in other.said if isinstance(one, Copies)]
    assert said.names == [("p0", "parameter"), ("p1", "parameter")]
    assert said_by_other.names == []
    assert said.identity == said_by_other.identity


def test_large_models_are_looked_at_share_by_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Of much memory a share is looked at in each step, so that after the number of steps all
    has come by once.
    """
    monkeypatch.setitem(SLOT_BYTES, "cpu", 4 * 100)
    session = FakeSession()
    watch = ReplicaWatch(session, Training(sizes=(60, 60, 60, 60, 60, 60)).find)
    watch.begin(-1)
    train(watch, 0, 9)

    first, *later = [(one.step, one.slots) for one in session.digests()]
    assert first == (0, [0, 1, 2, 3])
    assert later == [(step, [step % 4]) for step in range(1, 9)]


def test_a_flipped_bit_shows_in_the_next_look() -> None:
    """
    The digests of a rank differ from those of another from the next look on.
    """
    sessions, trainings = [FakeSession(), FakeSession(rank=1)], [Training(), Training()]
    for session, training in zip(sessions, trainings, strict=True):
        watch = ReplicaWatch(session, training.find)
        watch.begin(-1)
        train(watch, 0, 3)
        if session.rank == 1:
            flip_bit(training.tensors[1], 30, 9)
        train(watch, 3, 3)

    here, there = (session.digests() for session in sessions)
    assert [a.values == b.values for a, b in zip(here, there, strict=True)] == [True, False]


def test_begins_anew_after_going_back() -> None:
    """
    After a rollback everything is looked at after the first step that is made, and tensors
    that took the place of others are those that are looked at.
    """
    session, training = FakeSession(), Training()
    watch = ReplicaWatch(session, training.find)
    watch.begin(-1)
    train(watch, 0, 7)
    training.tensors = [torch.ones(6), torch.ones(10)]
    watch.begin(1)
    train(watch, 2, 4)

    assert [one.step for one in session.digests()] == [0, 4, 2, 4]
    assert session.digests()[0].values != session.digests()[2].values
    assert sum(isinstance(one, Copies) for one in session.said) == 1


def test_a_tensor_that_moved_is_looked_at_where_it_lies() -> None:
    """
    A parameter that was given other memory is looked at there from the next look on.
    """
    session, training = FakeSession(), Training()
    watch = ReplicaWatch(session, training.find)
    watch.begin(-1)
    train(watch, 0, 1)
    training.tensors[0].set_(torch.ones(6))
    train(watch, 1, 8)

    values = [one.values for one in session.digests()]
    assert [one.step for one in session.digests()] == [0, 4, 8]
    assert values[0] != values[2]
    assert sum(isinstance(one, Copies) for one in session.said) == 1


def test_a_look_that_fails_is_told_and_ends_looking_not_training() -> None:
    """
    Whatever goes wrong in a look is a notice, and there are no further looks.
    """

    def find() -> Found:
        raise RuntimeError("no memory left")

    session = FakeSession()
    watch = ReplicaWatch(session, find)
    watch.begin(-1)
    train(watch, 0, 10)

    assert session.notes == [
        "Copies of rank 0 are not looked at any more: RuntimeError: no memory left."
    ]
    assert watch.due_step == math.inf


def test_nothing_to_compare_is_said_once() -> None:
    """
    Where no copy is known, rank 0 says so and why, and nobody looks again.
    """
    session = FakeSession()
    watch = ReplicaWatch(session, Training(sizes=(), left_out=["all is sharded"]).find)
    watch.begin(-1)
    train(watch, 0, 10)

    assert session.said == []
    (said,) = session.notes
    assert said.startswith("No parameter is known to be held by more than one rank")
    assert said.endswith("so none is compared: all is sharded.")


def test_ranks_that_train_apart_for_now_are_not_compared() -> None:
    """
    While gradients are not synced on purpose nothing is sent, and what is compared later is
    not acted on.
    """
    session, wrapper = FakeSession(), SimpleNamespace(require_backward_grad_sync=True)
    watch = ReplicaWatch(session, Training(wrappers=[wrapper]).find)
    watch.begin(-1)
    train(watch, 0, 2)
    wrapper.require_backward_grad_sync = False
    train(watch, 2, 4)
    wrapper.require_backward_grad_sync = True
    train(watch, 6, 4)

    assert [one.step for one in session.digests()] == [0, 8]
    assert [one.is_certain for one in session.said if isinstance(one, Copies)] == [True, False]


def test_ranks_that_may_run_out_of_data_are_not_acted_on() -> None:
    """
    Under torch's ``Join`` copies are compared and nothing is done about a difference.
    """
    wrapper = SimpleNamespace(
        require_backward_grad_sync=True, _join_config=SimpleNamespace(enable=False)
    )
    session = FakeSession()
    watch = ReplicaWatch(session, Training(wrappers=[wrapper]).find)
    watch.begin(-1)
    train(watch, 0, 2)
    wrapper._join_config.enable = True
    train(watch, 2, 3)

    assert [one.step for one in session.digests()] == [0, 4]
    assert [one.is_certain for one in session.said if isinstance(one, Copies)] == [True, False]


def test_off_or_alone_costs_a_comparison() -> None:
    """
    With the rule off, or one rank, no step is ever due.
    """
    off = FakeSession(contract=Contract.level("L1").override(replica_divergence={"mode": "off"}))
    alone = FakeSession(peers=SimpleNamespace(world_size=1))
    for session in (off, alone):
        watch = ReplicaWatch(session, Training().find)
        watch.begin(-1)

        assert watch.due_step == math.inf


def test_steps_that_are_counted_by_two_are_looked_at_too() -> None:
    """
    With two optimizers a host counts two steps a batch: a turn that falls between is not missed.
    """
    session = FakeSession()
    watch = ReplicaWatch(session, Training().find)
    watch.begin(-1)
    for step in range(1, 18, 2):
        if step >= watch.due_step:
            watch.look(step)

    assert [one.step for one in session.digests()] == [1, 5, 9, 13, 17]


def test_tensors_that_come_back_are_said_again() -> None:
    """
    What is compared after layers were thawed and frozen again is said once more, since the
    coordinator has forgotten the set from before.
    """
    session, training = FakeSession(), Training()
    watch = ReplicaWatch(session, training.find)
    watch.begin(-1)
    for first, untrained in ((0, (1,)), (4, ()), (8, (1,))):
        training.untrained = untrained
        watch.forget()
        train(watch, first, 4)

    said = [one for one in session.said if isinstance(one, Copies) and one.is_trained]
    assert [len(one.slots) for one in said] == [1, 2, 1]
    assert said[0].identity == said[2].identity != said[1].identity
    apart = [one for one in session.said if isinstance(one, Copies) and not one.is_trained]
    assert [one.is_certain for one in apart] == [False]


class FakeBeside:
    """Notes what is done when, and does the work at once."""

    def __init__(self, done: list[str]) -> None:
        self.done = done
        self.is_running = False

    def run(self, work: Any) -> None:
        self.is_running = True
        self.done.append("run")
        work()

    def join(self) -> None:
        self.is_running = False
        self.done.append("join")


def _beside_a_backward(
    monkeypatch: pytest.MonkeyPatch, training: Training
) -> tuple[FakeSession, ReplicaWatch, list[str]]:
    monkeypatch.setattr(Found, "is_still_in_backward", True)
    session, done = FakeSession(), []
    watch = ReplicaWatch(session, training.find)
    watch._beside = FakeBeside(done)
    watch.begin(-1)
    return session, watch, done


def test_where_nothing_changes_in_a_backward_looks_run_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The first look is made at once; each later one waits for the next backward, is joined
    when that ends and tells the step it was due at; going back forgets one that waits.
    """
    session, watch, done = _beside_a_backward(monkeypatch, Training())
    for step in range(10):
        if watch.waiting:
            watch.begin_backward()
        watch.end_backward()
        train(watch, step, 1)

    assert [one.step for one in session.digests()] == [0, 4, 8]
    assert done == ["run", "join"] * 2
    train(watch, 10, 3)
    assert watch.waiting
    watch.begin(8)
    assert not watch.waiting


@pytest.mark.parametrize("is_begun", [True, False])
def test_an_update_that_comes_unannounced_ends_the_waiting(
    monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    """
    Where a step ends although no backward was told to begin, or to end, what was looked at
    meanwhile is not kept on its way, and later looks are made right after their step.
    """
    session, watch, done = _beside_a_backward(monkeypatch, Training())
    train(watch, 0, 5)
    if is_begun:
        watch.begin_backward()
    train(watch, 5, 8)

    assert done == (["run", "join"] if is_begun else [])
    assert [one.step for one in session.digests()] == [0, *([4] if is_begun else []), 8, 12]
    assert not watch.waiting
