"""When the silence of ranks becomes an incident, and when it ends."""

from typing import Any

from slav1.breach import Breach, Status
from slav1.coordinator.messages import Position
from slav1.coordinator.stall import LOOK_EVERY_S, Stall
from slav1.phase import Phase

from ._positions import (
    COMPILER,
    LAST_BARRIER,
    LONELY_HOOK,
    SLEEP,
    STEP_BROADCAST,
    STORAGE,
    TORCH_SAVE,
    position,
    waiting,
)

SOFT, HARD = False, True
HUNG = position(1, Phase.FORWARD, SLEEP)


def silence(rank: int, *, is_hard: bool = SOFT, **known: Any) -> Breach:
    """What the hang detector of one rank says."""
    usual = {"step": 20, "phase": Phase.FORWARD, "statistic": 1.1, "limit": 1.0, "unit": "s"}
    return Breach(
        rule="hang",
        rank=rank,
        is_actionable=is_hard,
        message=f"Rank {rank} stalls.",
        **{**usual, **known},
    )


def over(rank: int) -> Breach:
    """The same rank has got on."""
    return silence(rank, status=Status.RECOVERED, step=21)


def stall_with(*silent: Breach) -> Stall:
    """A stall in which these ranks are silent."""
    stall = Stall(compile_limit_s=60.0, store_limit_s=30.0)
    for breach in silent:
        assert stall.on_finding(breach) is None
    return stall


def look(stall: Stall, *positions: Position, at_s: float = 0.0) -> list[tuple[Any, ...]]:
    """One look at all ranks: what is new, as (status, rank, is_actionable)."""
    assert stall.wants_look(at_s)
    return [(b.status, b.rank, b.is_actionable) for b in stall.judge(positions)]


def test_a_hang_is_told_twice_at_most() -> None:
    """
    An incident is told when it is first seen and when it is time to act, and no look in
    between says it again.
    """
    stall = stall_with(silence(0), silence(1))

    assert look(stall, waiting(0), HUNG, at_s=0.0) == [(Status.BREACH, 1, SOFT)]
    assert look(stall, waiting(0), HUNG, at_s=1.0) == []
    stall.on_finding(silence(1, is_hard=HARD))
    assert look(stall, waiting(0), HUNG, at_s=2.0) == [(Status.BREACH, 1, HARD)]
    assert not stall.wants_look(3.0)
    assert stall.is_open
    assert stall.num_told == 2


def test_looks_are_paced() -> None:
    """
    Ranks are looked at while one is silent, and not more often than the pause allows.
    """
    stall = stall_with()

    assert not stall.wants_look(0.0)
    stall.on_finding(silence(0))
    assert stall.wants_look(1.0)
    assert not stall.wants_look(1.0 + LOOK_EVERY_S / 2)
    assert stall.wants_look(1.0 + LOOK_EVERY_S)


def test_the_victims_of_a_long_save_open_nothing() -> None:
    """
    A rank that saves within its own limit is not reported because others wait for it,
    however often they are looked at and though they are past their hard limit.
    """
    stall = stall_with(silence(1, is_hard=HARD))
    saving = position(0, Phase.CHECKPOINT, STORAGE, since_progress_s=8.0)

    for at_s in (0.0, 1.0, 2.0, 3.0):
        assert look(stall, saving, waiting(1), at_s=at_s) == []
    assert not stall.is_open


def test_a_save_past_its_own_limit_is_reported_with_its_phase() -> None:
    """
    Once the saving rank overstepped the checkpoint's own limit, it is named with that
    limit and phase.
    """
    stall = stall_with(silence(1, is_hard=HARD))
    stall.on_finding(silence(0, is_hard=HARD, phase=Phase.CHECKPOINT, limit=600.0))
    saving = position(0, Phase.CHECKPOINT, STORAGE, since_progress_s=601.0)

    stall.wants_look(0.0)
    (breach,) = stall.judge([saving, waiting(1)])

    assert (breach.rank, breach.phase, breach.limit) == (0, Phase.CHECKPOINT, 600.0)
    assert breach.statistic == 601.0
    assert breach.is_actionable


def test_a_hang_beside_a_long_save_is_found() -> None:
    """
    A rank that hangs while another one saves within its limit is reported.
    """
    stall = stall_with(silence(1, is_hard=HARD))
    saving = position(0, Phase.CHECKPOINT, STORAGE, step=20)

    assert look(stall, saving, position(1, Phase.FORWARD, SLEEP, step=21)) == [
        (Status.BREACH, 1, HARD)
    ]


def test_a_deadlock_needs_two_looks_without_progress() -> None:
    """
    Ranks that all wait may be about to move: only if none did between two looks it is
    reported, and any rank's hard limit makes it time to act.
    """
    stall = stall_with(silence(1, is_hard=HARD))
    lonely = position(0, Phase.BETWEEN, LONELY_HOOK, step=21, change=7)
    other = position(1, Phase.BETWEEN, STEP_BROADCAST, step=21, change=9)
    moved = position(1, Phase.BETWEEN, STEP_BROADCAST, step=21, change=10)

    assert look(stall, lonely, other, at_s=0.0) == []
    assert look(stall, lonely, moved, at_s=1.0) == []
    assert look(stall, lonely, moved, at_s=2.0) == [(Status.BREACH, 0, HARD)]


def test_in_a_deadlock_the_hard_limit_of_any_rank_counts() -> None:
    """
    Where everybody waits, it is time to act as soon as one rank is past its hard limit.
    """
    stall = stall_with(silence(0), silence(1, is_hard=HARD), silence(2))
    positions = [waiting(rank) for rank in (0, 1, 2)]

    assert look(stall, *positions, at_s=0.0) == []
    assert look(stall, *positions, at_s=1.0) == [(Status.BREACH, None, HARD)]


def test_uneven_batches_are_acted_on_at_the_limit_of_the_waiting_rank() -> None:
    """
    The rank that has finished has no limit left; the one that waits for it has.
    """
    stall = stall_with(silence(1, is_hard=HARD))
    done = position(0, Phase.DONE, exit_reason="finished")

    assert look(stall, done, waiting(1), at_s=0.0) == []
    assert look(stall, done, waiting(1), at_s=1.0) == [(Status.BREACH, 0, HARD)]


def test_a_rank_that_left_by_an_error_is_reported_at_once() -> None:
    """
    What is a fact needs no second look.
    """
    stall = stall_with(silence(0))
    left = position(1, Phase.DONE, exit_reason="ValueError: no")

    assert look(stall, waiting(0), left) == [(Status.BREACH, 1, SOFT)]


def test_compiling_is_excused_for_so_long() -> None:
    """
    A rank may compile up to the limit of the first step; past it, it is reported.
    """
    stall = stall_with(silence(0), silence(1, is_hard=HARD))
    quick = position(1, Phase.FORWARD, COMPILER, since_progress_s=59.0)
    slow = position(1, Phase.FORWARD, COMPILER, since_progress_s=61.0)

    assert look(stall, waiting(0), quick, at_s=0.0) == []
    assert look(stall, waiting(0), slow, at_s=1.0) == [(Status.BREACH, 1, HARD)]


def test_a_save_outside_of_the_saving_phase_is_excused_for_so_long() -> None:
    """
    A rank that writes a checkpoint on its own, in the user's hook, has the time that
    checkpoints have; past it, it is reported.
    """
    stall = stall_with(silence(0), silence(1, is_hard=HARD))
    quick = position(1, Phase.BETWEEN, TORCH_SAVE, since_progress_s=29.0)
    slow = position(1, Phase.BETWEEN, TORCH_SAVE, since_progress_s=31.0)

    assert look(stall, waiting(0), quick, at_s=0.0) == []
    assert look(stall, waiting(0), slow, at_s=1.0) == [(Status.BREACH, 1, HARD)]


def test_two_incidents_have_two_ends() -> None:
    """
    A rank that goes on ends the incident that names it, once, and may open another.
    """
    stall = stall_with(silence(0), silence(1))
    look(stall, waiting(0), HUNG, at_s=0.0)

    end = stall.on_finding(over(1))
    assert end is not None
    assert (end.status, end.rank, end.message) == (Status.RECOVERED, 1, "Rank 1 stalls.")
    assert stall.on_finding(over(0)) is None
    assert not stall.is_open

    stall.on_finding(silence(1))
    assert look(stall, waiting(0), HUNG, at_s=10.0) == [(Status.BREACH, 1, SOFT)]


def test_an_incident_that_names_nobody_ends_with_the_last_silence() -> None:
    """
    Where no rank is at fault, the incident lasts until none is silent.
    """
    stall = stall_with(silence(0), silence(1))
    look(stall, waiting(0), waiting(1), at_s=0.0)
    assert look(stall, waiting(0), waiting(1), at_s=1.0) == [(Status.BREACH, None, SOFT)]

    assert stall.on_finding(over(0)) is None
    end = stall.on_finding(over(1))

    assert end is not None
    assert (end.status, end.rank) == (Status.RECOVERED, None)


def test_another_culprit_closes_the_incident_of_the_first() -> None:
    """
    When it is time to act and another rank is at fault by then, the first one's incident
    ends, so that none stays open for ever.
    """
    stall = stall_with(silence(0), silence(1))
    look(stall, waiting(0), HUNG, at_s=0.0)
    stall.on_finding(silence(0, is_hard=HARD))

    found = look(stall, position(0, Phase.FORWARD, SLEEP), waiting(1), at_s=1.0)

    assert found == [(Status.RECOVERED, 1, SOFT), (Status.BREACH, 0, HARD)]


def test_silence_that_ends_before_the_look_opens_nothing() -> None:
    """
    The answer to a look that comes after the ranks went on is not judged.
    """
    stall = stall_with(silence(0))
    assert stall.wants_look(0.0)
    stall.on_finding(over(0))

    assert stall.judge([waiting(0), HUNG]) == []


def test_another_rank_that_leaves_changes_nothing() -> None:
    """
    An incident stays as it is when a rank leaves that it does not name.
    """
    stall = stall_with(silence(0), silence(1))
    stall.forget(2)
    look(stall, waiting(0), HUNG, at_s=0.0)
    stall.forget(0)

    assert stall.is_open


def test_a_rank_that_leaves_is_a_new_matter() -> None:
    """
    After the reported rank has died, those that still wait for it are reported anew.
    """
    stall = stall_with(silence(0), silence(1, is_hard=HARD))
    look(stall, waiting(0), HUNG, at_s=0.0)
    stall.forget(1)
    dead = position(1, Phase.FORWARD, is_alive=False, process_state="X")

    assert look(stall, waiting(0), dead, at_s=1.0) == [(Status.BREACH, 1, SOFT)]


def test_a_job_stopped_as_a_whole_is_left_alone() -> None:
    """
    When somebody has stopped every process, as with Ctrl-Z, none is at fault, nor in the
    time that they need to come back.
    """
    stall = stall_with(silence(0, is_hard=HARD), silence(1, is_hard=HARD))
    stopped = [position(rank, Phase.FORWARD, process_state="T") for rank in (0, 1)]

    assert look(stall, *stopped, at_s=0.0) == []
    assert look(stall, waiting(0), HUNG, at_s=0.6) == []
    assert look(stall, waiting(0), HUNG, at_s=1.2) == [(Status.BREACH, 1, HARD)]


def test_known_lengths_of_the_loaders_are_used() -> None:
    """
    What the ranks said about their data before the first step decides what is likely.
    """
    stall = stall_with(silence(1, is_hard=HARD))
    stall.has_uneven_batches = False
    away = position(0, Phase.TEARDOWN, LAST_BARRIER)
    look(stall, away, waiting(1), at_s=0.0)

    stall.wants_look(1.0)
    (breach,) = stall.judge([away, waiting(1)])

    assert breach.evidence["cause"] == "different_operations"


def test_the_evidence_holds_what_a_person_needs() -> None:
    """
    An incident carries cause, both stacks, how long nothing moved, and where each rank is.
    """
    stall = stall_with(silence(0), silence(1))
    lonely = position(0, Phase.BETWEEN, LONELY_HOOK, step=21, since_progress_s=3.0)
    other = position(1, Phase.BETWEEN, STEP_BROADCAST, step=21)
    stall.wants_look(0.0)

    (breach,) = stall.judge([lonely, other])

    evidence = breach.evidence
    assert evidence["cause"] == "different_operations"
    assert evidence["stack"] == list(LONELY_HOOK)
    assert evidence["peer"] == 1
    assert evidence["peer_stack"] == list(STEP_BROADCAST)
    assert evidence["seconds_since_progress"] == breach.statistic == 3.0
    assert [rank["rank"] for rank in evidence["ranks"]] == [0, 1]
    assert [rank["waits_for_peers"] for rank in evidence["ranks"]] == [True, True]
