"""Dead, stopped and silent ranks, both forms of the rule."""

import random

import pytest
from _detector_tools import breaches, progress, pulse, watch

from slav1.breach import Status
from slav1.detectors import LivenessLiteral, LivenessSequential
from slav1.phase import Phase


def beats(states: str, *, first_s: float = 0.0):
    """One pulse a second, each in one of these process states."""
    return [pulse(first_s + i, process_state=state) for i, state in enumerate(states)]


def test_a_process_that_is_gone_is_found_at_once():
    """
    One look is enough; the breach is to be acted on, told once, and repeats the rank's own
    words.
    """
    gone = [
        pulse(5.0 + i, is_alive=False, process_state="X", exit_reason="MemoryError")
        for i in range(5)
    ]

    (breach,) = watch(LivenessSequential(), [*progress(0, 5), *gone])

    assert (breach.rank, breach.is_actionable, breach.evidence["kind"]) == (1, True, "gone")
    assert "MemoryError" in breach.message


def test_a_goodbye_is_no_death():
    """
    A process that ends after its goodbye is not missed, by either form.
    """
    left = [pulse(5.0 + i, is_alive=False, process_state="X", phase=Phase.DONE) for i in range(90)]

    assert watch(LivenessSequential(), [*progress(0, 5), *left]) == []
    assert watch(LivenessLiteral(), [*progress(0, 5), *left]) == []


def test_a_stopped_process_is_logged_and_may_come_back():
    """
    Stopped for more than three seconds: a breach that is only logged; running again: its
    end. Two seconds are nothing.
    """
    run = beats("SSS" + "TT" + "SSSSS" + "T" * 8 + "SSS")

    found = watch(LivenessSequential(), run)

    assert [(b.status, b.is_actionable) for b in found] == [
        (Status.BREACH, False),
        (Status.RECOVERED, False),
    ]
    assert found[0].evidence["kind"] == "stopped"
    assert 3.0 < found[0].statistic <= 4.0


def test_a_stopped_process_that_dies_is_told_of():
    """
    The stronger finding is not hidden by the open incident.
    """
    run = [*beats("SSTTTTTT"), pulse(9.0, is_alive=False, process_state="X")]

    assert [b.is_actionable for b in watch(LivenessSequential(), run)] == [False, True]


def test_six_silent_seconds_are_found():
    """
    Six missed beats in a row are enough at the default ARL0, five are not, at any rate of
    looking.
    """
    for num, expected in ((5, []), (7, ["missed_beats"])):
        run = beats("S" * 30 + "?" * num + "S" * 30)
        assert [b.evidence["kind"] for b in watch(LivenessSequential(), run)] == expected
    fast = [*progress(0, 10), *progress(10, 8, process_state="?"), *progress(18, 5)]
    assert len(breaches(watch(LivenessSequential(), fast))) == 1


def test_scattered_misses_are_found():
    """
    A rank that misses one beat in a hundred, ten times too many, is found within half an
    hour; the incident ends after a clean minute.
    """
    rng = random.Random(0)
    states = ["?" if rng.random() < 0.02 else "S" for _ in range(1_800)]

    found = watch(LivenessSequential(), beats("".join(states) + "S" * 60))

    assert found[0].evidence["kind"] == "missed_beats"
    assert found[0].arl0 == 1e6
    assert found[-1].status is Status.RECOVERED


def test_one_answer_is_enough_for_a_beat():
    """
    A rank that answers one look in ten of every second misses no beat.
    """
    run = [pulse(i / 10, process_state="S" if i % 10 == 5 else "?") for i in range(600)]

    assert watch(LivenessSequential(), run) == []


@pytest.mark.slow
def test_keeps_its_claim():
    """
    With exactly as many misses as allowed, false alarms are at least as far apart as
    claimed.
    """
    rng = random.Random(3)
    detector = LivenessSequential(arl0=2_000, miss_ratio=0.01, bad_miss_ratio=0.1)
    states = "".join("?" if rng.random() < 0.01 else "S" for _ in range(100_000))

    found = breaches(watch(detector, beats(states)))

    assert 100_000 / max(1, len(found)) > 0.8 * 2_000


def test_seconds_in_which_nobody_looked_are_no_beats():
    """
    A monitor that was away for a minute has not seen sixty misses.
    """
    run = [*progress(0, 5), *progress(65, 5)]
    seldom = progress(0, 300, tick_s=5.0)

    assert watch(LivenessSequential(), run) == []
    assert watch(LivenessSequential(), seldom) == []
    assert watch(LivenessLiteral(), run) == []


def test_literal_needs_sixty_bad_seconds_in_a_row():
    """
    Fifty-nine seconds with at least one miss each are nothing, sixty are the breach, one
    good second ends it.
    """
    bad_second = [pulse(0.0, process_state="T" if i == 3 else "S") for i in range(10)]

    def seconds(num_bad: int):
        run = []
        for second in range(num_bad):
            run += [
                pulse(second + i / 10, process_state=p.process_state)
                for i, p in enumerate(bad_second)
            ]
        return run + progress(num_bad, 3)

    assert watch(LivenessLiteral(), seconds(59)) == []
    assert [b.status for b in watch(LivenessLiteral(), seconds(61))] == [
        Status.BREACH,
        Status.RECOVERED,
    ]


def test_refuses_impossible_settings():
    """
    The text names the settings and the values.
    """
    with pytest.raises(ValueError, match="limit_percent must be above 0 and at most 100, got 101"):
        LivenessLiteral(limit_percent=101)
    with pytest.raises(ValueError, match="miss_ratio and bad_miss_ratio must lie between 0 and 1"):
        LivenessSequential(miss_ratio=0.1, bad_miss_ratio=0.1)
    with pytest.raises(ValueError, match="stopped_limit_s must be above 0 seconds"):
        LivenessSequential(stopped_limit_s=0)
