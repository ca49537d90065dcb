"""The scheduled decision in every order of its memory accesses, and in many of larger jobs."""

from collections.abc import Iterable
from typing import Any

import pytest

from slav1.decision import Action
from slav1.recorder import command

from ._explorer import Port, State, World
from ._job import (
    COORDINATOR,
    Job,
    PublishesTheStepJustEnded,
    ReadsBeforeItWrites,
    disagreement,
)

SNAPSHOT, ROLLBACK, STOP = Action.SNAPSHOT, Action.ROLLBACK, Action.STOP
ONE_NODE = {"a": (0, 1)}
TWO_NODES = {"a": (0,), "b": (1,)}
LARGE = {"a": (0, 1), "b": (2, 3)}

SMALL_JOBS = {
    "stop": Job(nodes=ONE_NODE, steps=range(3)),
    "two decisions": Job(nodes=ONE_NODE, steps=range(2), proposals=(SNAPSHOT, SNAPSHOT)),
    "steps that jump": Job(nodes=ONE_NODE, steps=(1, 3, 5)),
    "ranks that do not wait for each other": Job(nodes=ONE_NODE, steps=range(2), is_coupled=False),
    "a rank dies": Job(nodes=ONE_NODE, steps=range(2), proposals=(SNAPSHOT,), mortals=("rank0",)),
    "time runs out": Job(nodes=ONE_NODE, steps=range(2), has_time_limit=True),
    "the monitor dies": Job(
        nodes=ONE_NODE, steps=range(2), proposals=(SNAPSHOT,), mortals=(COORDINATOR,)
    ),
    "two nodes": Job(nodes=TWO_NODES, steps=range(2)),
}
LARGE_JOBS = {
    "three decisions": Job(nodes=LARGE, steps=range(8), proposals=(SNAPSHOT, SNAPSHOT, STOP)),
    "higher ones come at any time": Job(
        nodes=LARGE,
        steps=range(6),
        proposals=(SNAPSHOT, ROLLBACK, STOP),
        is_proposed_any_time=True,
    ),
    "time runs out": Job(
        nodes=LARGE, steps=range(6), proposals=(SNAPSHOT, STOP), has_time_limit=True
    ),
    "a rank dies": Job(
        nodes=LARGE,
        steps=range(6),
        proposals=(SNAPSHOT, STOP),
        mortals=("rank0", "rank1", "rank2", "rank3"),
    ),
    "a monitor dies": Job(nodes=LARGE, steps=range(6), proposals=(SNAPSHOT,), mortals=("a", "b")),
}
WRONG_JOBS = {
    "publishes the step just ended": {"reader": PublishesTheStepJustEnded},
    "reads before it writes": {"reader": ReadsBeforeItWrites},
    "monitor does not pause": {"pauses": False},
}


@pytest.fixture(autouse=True)
def _asks_at_once_whether_the_monitor_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    # Hundreds of looks that find nothing new would only multiply equal states.
    monkeypatch.setattr(command, "ALIVE_CHECK_S", command.FIRST_DELAY_S)


def first_wrong_state(job: Job, world: World, states: Iterable[Any]) -> str | None:
    for state, is_last, trace in states:
        wrong = disagreement(job, world, state, is_last)
        if wrong is not None:
            return "\n".join([wrong, *trace()])
    return None


def outcomes(state: State) -> dict[int, str]:
    return {note[1]: note[2].name for note in state.notes if note[0] == "outcome"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if name == "two nodes" else ())
        for name in SMALL_JOBS
    ],
)
def test_no_order_makes_ranks_disagree(name: str) -> None:
    """
    However the accesses of a small job interleave, and however late stores become
    visible: all ranks act at the end of the same step or none does, and none gets stuck.
    """
    job = SMALL_JOBS[name]
    world = job.world()

    assert first_wrong_state(job, world, world.explore()) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_JOBS)
def test_no_random_order_makes_ranks_disagree(name: str) -> None:
    """
    The same holds on two nodes with two ranks each, in runs drawn at random.
    """
    job = LARGE_JOBS[name]
    world = job.world()

    for seed in range(60):
        assert first_wrong_state(job, world, world.walk(seed)) is None, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG_JOBS)
def test_wrong_variants_are_caught(name: str) -> None:
    """
    The search finds what is wrong with each variant that looks almost right.
    """
    job = Job(nodes=ONE_NODE, steps=range(3), **WRONG_JOBS[name])
    world = job.world()

    wrong = first_wrong_state(job, world, world.explore())

    assert wrong is not None
    assert "stuck" in wrong or "different steps" in wrong


@pytest.mark.slow
def test_decisions_are_carried_out_in_the_model() -> None:
    """
    The search is no search of nothing: runs end with decisions carried out, and where
    training ends first with none.
    """
    job = Job(nodes=ONE_NODE, steps=range(2))

    ends = [outcomes(state) for state, is_last, _ in job.world().explore() if is_last]

    assert {1: "CARRIED_OUT"} in ends
    assert {1: "MOOT"} in ends


@pytest.mark.parametrize("pauses", [False, True])
def test_explorer_knows_store_buffers(pauses: bool) -> None:
    """
    Two processes that each store and then read the other's word can both read the old
    value, as on x86; not if both pause in between.
    """

    def process(port: Port, own: str, other: str) -> None:
        port.store(own, 1)
        if pauses:
            port.settle(0.0)
        port.note(own, port.load(other))

    world = World(
        {
            "p": lambda port, _: process(port, "x", "y"),
            "q": lambda port, _: process(port, "y", "x"),
        },
        marked_by={"p": ("q",), "q": ("p",)},
    )

    ends = [state.notes for state, is_last, _ in world.explore() if is_last]

    assert ({("x", 0), ("y", 0)} in ends) is not pauses
    assert {("x", 1), ("y", 1)} in ends
