"""What a checkpoint gets of the detectors while ranks go back one after the other."""

from slav1.contract import Contract
from slav1.coordinator.job_guard import JobGuard
from slav1.coordinator.messages import StateAsked


def numbers(guard: JobGuard, now_s: float) -> list[int]:
    return [answer.number for _, answer in guard.answers(now_s)]


def test_whoever_asks_while_others_go_back_is_answered_at_once() -> None:
    """
    The step that a rank saves is complete on no rank that is back already: neither a question
    that waits for it nor a later one waits for its limit.
    """
    guard = JobGuard(Contract.level("L1"), world_size=2)
    guard.ask(0, StateAsked(rank=0, step=29, number=1), now_s=0.0)
    assert numbers(guard, now_s=0.1) == []
    guard.on_rank_back(1, 9, None)
    assert numbers(guard, now_s=0.1) == [1]
    guard.ask(0, StateAsked(rank=0, step=39, number=2), now_s=0.2)
    assert numbers(guard, now_s=0.2) == [2]
    guard.on_rank_back(0, 9, None)
    guard.ask(0, StateAsked(rank=0, step=19, number=3), now_s=0.3)
    assert numbers(guard, now_s=0.3) == []
