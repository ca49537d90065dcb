"""When a checkpoint's question for the detectors' memories is answered."""

from slav1.coordinator.messages import StateAsked
from slav1.coordinator.state_requests import LATEST_S, StateRequests


def due(requests: StateRequests, newest_step: int, now_s: float) -> list[tuple[int, int]]:
    """Node and rank of those that are answered."""
    return [(node, asked.rank) for node, asked in requests.take(newest_step, now_s)]


def asking(*steps: int | None) -> StateRequests:
    """Ranks 0, 1, ... of node 3 ask for memories up to these steps, at second 10."""
    requests = StateRequests()
    for rank, step in enumerate(steps):
        requests.add(3, StateAsked(rank=rank, step=step), 10.0)
    return requests


def test_an_answer_waits_for_the_last_step_of_all_ranks() -> None:
    """
    Memories are handed out once they include the step asked for, and only once.
    """
    requests = asking(20)

    assert due(requests, 19, 10.0) == []
    assert due(requests, 20, 10.1) == [(3, 0)]
    assert due(requests, 21, 10.2) == []


def test_nobody_waits_for_ever() -> None:
    """
    A sample that never comes delays a save by the limit and no more.
    """
    requests = asking(20)

    assert due(requests, 19, 10.0 + 0.9 * LATEST_S) == []
    assert due(requests, 19, 10.0 + LATEST_S) == [(3, 0)]


def test_whoever_needs_no_step_is_answered_at_once() -> None:
    """
    Before the first step, and for hosts that do not mind, memories are taken as they are;
    others go on waiting.
    """
    requests = asking(None, 20)

    assert due(requests, -1, 10.0) == [(3, 0)]
    assert due(requests, 20, 10.1) == [(3, 1)]
