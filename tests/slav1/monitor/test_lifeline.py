"""What a node does when its coordinator is silent: no more than the coordinator would."""

import pytest

from slav1.breach import Breach, Status
from slav1.contract import Contract
from slav1.coordinator.membership import NODE_SILENCE_S
from slav1.coordinator.messages import Position
from slav1.monitor.lifeline import Lifeline
from slav1.phase import Phase
from slav1.sample import Pulse

CUT_S = NODE_SILENCE_S + 1.0
OWN_CODE = "/user/model.py:3 loss"
COMPILER = "/lib/torch/_inductor/compile_fx.py:700 compile_fx"
SAVE = "/lib/torch/serialization.py:1250 _save"
WAIT = "/lib/torch/distributed/distributed_c10d.py:3252 all_reduce"


def hang(rank: int, status: Status = Status.BREACH) -> Breach:
    return Breach(
        rule="hang",
        status=status,
        rank=rank,
        step=7,
        phase=Phase.FORWARD,
        statistic=20.0,
        limit=10.0,
        unit="s",
        message=f"Rank {rank} has stalled.",
    )


def position(rank: int, frame: str, *, change: int = 1, phase: Phase = Phase.FORWARD) -> Position:
    pulse = Pulse(
        rank=rank,
        time_s=50.0,
        is_alive=True,
        process_state="S",
        step=7,
        phase=phase,
        since_progress_s=20.0,
        num_steps=7,
    )
    return Position(pulse=pulse, change=change, stack=[frame])


def reason(lifeline: Lifeline, *positions: Position) -> Breach | None:
    """Why the node would end its ranks after it has looked at them twice."""
    for look_s in (CUT_S, CUT_S + 1.0):
        if lifeline.wants_look(look_s):
            lifeline.judge(positions)
    return lifeline.reason_to_end(CUT_S + 1.0)


@pytest.mark.parametrize(
    ("frame", "is_ended"), [(OWN_CODE, True), (COMPILER, False), (SAVE, False)]
)
def test_excuses_hold_without_the_coordinator(frame, is_ended):
    """
    A rank that compiles or writes a checkpoint is not ended for it by a node alone, though
    its own phase has a shorter limit; one that hangs in its own code is.
    """
    lifeline = Lifeline(Contract.level("L1"), 0.0)
    lifeline.note(hang(0))
    lifeline.note(hang(1))

    ended = reason(lifeline, position(0, frame), position(1, WAIT))
    assert (ended is not None) is is_ended
    assert ended is None or (ended.rank == 0 and "rank 0" in ended.message.lower())


def test_ranks_that_wait_for_a_lost_node_are_ended():
    """
    When all ranks of the node wait for others that are gone, the node ends them.
    """
    lifeline = Lifeline(Contract.level("L1"), 0.0)
    lifeline.note(hang(0))
    lifeline.note(hang(1))

    assert reason(lifeline, position(0, WAIT), position(1, WAIT)) is not None


def test_nothing_is_done_while_the_coordinator_speaks():
    """
    As long as the line holds, the node neither looks nor ends anybody.
    """
    lifeline = Lifeline(Contract.level("L1"), 0.0)
    lifeline.note(hang(0))
    lifeline.hear(CUT_S)

    assert not lifeline.wants_look(CUT_S)
    assert lifeline.reason_to_end(CUT_S) is None


@pytest.mark.parametrize("how", ["left", "recovered"])
def test_a_rank_that_left_or_goes_on_is_forgotten(how):
    """
    A standstill is over when its rank moves again or has left in good order, before the
    line is cut and after.
    """
    lifeline = Lifeline(Contract.level("L1"), 0.0)
    lifeline.note(hang(0))
    assert reason(lifeline, position(0, OWN_CODE), position(1, WAIT)) is not None
    if how == "left":
        lifeline.forget(0)
    else:
        lifeline.note(hang(0, Status.RECOVERED))

    assert reason(lifeline, position(1, WAIT)) is None
