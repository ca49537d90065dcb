"""The contract's literal rule on one rank's sync."""

import pytest
from _detector_tools import watch

from slav1.detectors import SyncOutlierLiteral
from slav1.sample import Round, Sample


def rounds(*lengths_ms: tuple[float | None, ...]) -> list[Round]:
    return [
        Round(
            step=step,
            samples=tuple(
                Sample(rank=rank, step=step, time_s=0.0, sync_s=None if ms is None else ms / 1000)
                for rank, ms in enumerate(row)
            ),
        )
        for step, row in enumerate(lengths_ms)
    ]


def test_three_blocked_rounds_are_a_breach():
    """
    A rank over three times the median and over 50 ms, three rounds in a row.
    """
    found = watch(SyncOutlierLiteral(), rounds(*[(10, 12, 90)] * 5, (10, 12, 14)))

    assert [(b.step, b.rank, b.status.value) for b in found] == [
        (2, 2, "breach"),
        (5, 2, "recovered"),
    ]


@pytest.mark.parametrize(
    "row", [(10, 12, 45), (40, 45, 110), (400, 410, 500), (0.1, 0.1, 14)], ids=str
)
def test_needs_both_the_ratio_and_the_length(row):
    """
    Under 50 ms, or under three times the median, no rank is blocked.
    """
    assert watch(SyncOutlierLiteral(), rounds(*[row] * 5)) == []


def test_blames_the_victims():
    """
    Three ranks are late and the fourth waits for them: the fourth is named. One rank is late
    and three wait for it: nobody is.
    """
    three_late, one_late = (0.5, 0.5, 0.5, 401.0), (0.5, 401.0, 401.0, 401.0)

    (breach,) = watch(SyncOutlierLiteral(), rounds(*[three_late] * 3))
    assert breach.rank == 3
    assert watch(SyncOutlierLiteral(), rounds(*[one_late] * 5)) == []


def test_is_silent_with_two_ranks():
    """
    No sync exceeds twice the median of two.
    """
    assert watch(SyncOutlierLiteral(), rounds(*[(0.5, 401.0)] * 5)) == []


def test_tells_of_every_blocked_rank():
    """
    Two ranks blocked at the same time are told of one after the other.
    """
    found = watch(SyncOutlierLiteral(), rounds(*[(1, 1, 1, 90, 95)] * 5))

    assert [(b.step, b.rank) for b in found] == [(2, 3), (3, 4)]


def test_refuses_impossible_settings():
    """
    What is normal cannot be blocked.
    """
    with pytest.raises(ValueError, match="normal_ms must be above 0 and at most blocked_ms"):
        SyncOutlierLiteral(normal_ms=60)
