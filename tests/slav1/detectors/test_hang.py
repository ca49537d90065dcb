"""Ranks that make no progress, both forms of the rule."""

import random
from itertools import groupby
from typing import Any

import pytest
from _detector_tools import breaches, progress, pulse, stall, watch, watch_from

from slav1.breach import Status
from slav1.detectors import HangLearned, HangLiteral
from slav1.phase import STEP_PHASES, Phase
from slav1.sample import Sample

both = pytest.mark.parametrize(
    "detector", [HangLiteral(limit_s=3.0), HangLearned(limit_s=3.0)], ids=["literal", "learned"]
)
LONG_PHASES = {
    Phase.SETUP: "setup_limit_s",
    Phase.EVALUATION: "evaluation_limit_s",
    Phase.CHECKPOINT: "checkpoint_limit_s",
    Phase.TEARDOWN: "teardown_limit_s",
}


def steps(num: int, *, step_s: float = 0.02, first: int = 0, **changes: Any) -> list[Sample]:
    """Samples of steps of which each phase takes a share, with some noise."""
    rng = random.Random(f"{num} {step_s}")
    samples = []
    for step in range(first, first + num):
        scale = step_s * rng.lognormvariate(0.0, 0.1)
        usual = {
            "rank": 1,
            "step": step,
            "time_s": step * step_s,
            "step_time_s": scale,
            "data_s": 0.1 * scale,
            "forward_s": 0.3 * scale,
            "backward_s": 0.3 * scale,
            "sync_s": 0.1 * scale,
            "optimizer_s": 0.1 * scale,
        }
        samples.append(Sample(**(usual | changes)))
    return samples


def statuses(found) -> list[tuple[str, bool]]:
    return [(b.status.value, b.is_actionable) for b in found]


@both
@pytest.mark.parametrize("phase", sorted(STEP_PHASES))
def test_a_stall_in_a_step_is_found(detector, phase):
    """
    A rank that stays in any phase of a step past the limit is named with the phase, the
    step and the time, once.
    """
    found = watch(detector, [*steps(100), *progress(0, 5), *stall(5, 6, phase=phase, step=60)])

    hard = [b for b in found if b.is_actionable]
    assert len(hard) == 1
    assert (hard[0].rank, hard[0].step, hard[0].phase) == (1, 60, phase)
    assert 3.0 < hard[0].statistic < 3.3
    assert hard[0].limit == 3.0
    assert hard[0].evidence["seconds_since_progress"] == pytest.approx(hard[0].statistic)


def test_the_learned_limit_warns_early():
    """
    After 30 fast steps a stall is reported within about a second, only to be logged; the
    hard limit follows in the same incident.
    """
    detector = HangLearned(limit_s=3.0)

    found = watch(detector, [*steps(30), *progress(0, 5), *stall(5, 6)])

    assert statuses(found) == [("breach", False), ("breach", True)]
    assert 1.0 <= found[0].statistic < 1.3
    assert (found[0].arl0 > 1e6, found[1].arl0) == (True, None)


def test_there_is_no_early_warning_from_few_samples():
    """
    With 29 samples of a phase only the hard limit speaks.
    """
    found = watch(HangLearned(limit_s=3.0), [*steps(29), *progress(0, 5), *stall(5, 6)])

    assert statuses(found) == [("breach", True)]


@both
def test_two_stalls_are_two_incidents(detector):
    """
    Stall, recovery, stall: the alarm arms itself again and each incident has its end.
    """
    run = [*steps(60), *progress(0, 5), *stall(5, 8), *progress(13, 10), *stall(23, 8)]
    run += progress(31, 5)

    found = watch(detector, run)

    assert [status for status, _ in groupby(b.status for b in found)] == [
        Status.BREACH,
        Status.RECOVERED,
        Status.BREACH,
        Status.RECOVERED,
    ]
    assert sum(b.is_actionable for b in found) == 2
    assert found[-1].statistic == pytest.approx(8.0, abs=0.2)


@both
@pytest.mark.parametrize("phase", LONG_PHASES)
def test_long_phases_have_limits_of_their_own(detector, phase):
    """
    Eight seconds of setup, evaluation, checkpoint or teardown are no hang at a step limit
    of three; past its own limit the phase is named.
    """
    short = type(detector)(limit_s=3.0, **{LONG_PHASES[phase]: 5.0})
    run = [*steps(60), *progress(0, 5), *stall(5, 8, phase=phase)]

    assert watch(detector, run) == []
    assert [(b.phase, b.limit) for b in watch(short, run)] == [(phase, 5.0)]


@both
def test_long_phases_do_not_hide_a_later_hang(detector):
    """
    First step, checkpoint and evaluation of eight seconds each, then a real hang: only the
    hang is found, within twice its limit.
    """
    run = [
        *stall(0, 8, num_steps=0),
        *steps(60),
        *progress(8, 2),
        *stall(10, 8, phase=Phase.CHECKPOINT),
        *progress(18, 2),
        *stall(20, 8, phase=Phase.EVALUATION),
        *progress(28, 2),
        *stall(30, 20, step=77),
    ]

    hard = [b for b in watch(detector, run) if b.is_actionable]

    assert [(b.step, b.rank) for b in hard] == [(77, 1)]
    assert 3.0 < hard[0].statistic < 6.0


@both
def test_the_first_steps_have_their_own_limit(detector):
    """
    A first step may take as long as compiling does, but not for ever.
    """
    short = type(detector)(limit_s=3.0, first_step_limit_s=10.0)
    run = stall(0, 20, num_steps=0)

    assert watch(detector, run) == []
    assert [b.limit for b in watch(short, run)] == [10.0]


@both
def test_nothing_is_expected_of_a_rank_that_is_done_or_gone(detector):
    """
    After its goodbye a rank is not judged, and a dead one is left to the liveness rule.
    """
    start = [*steps(60), *progress(0, 5)]

    strict = type(detector)(limit_s=3.0, teardown_limit_s=3.0)
    assert watch(strict, [*start, *stall(5, 60, phase=Phase.DONE)]) == []
    assert watch(detector, [*start, *stall(5, 60, is_alive=False)]) == []


@both
def test_a_goodbye_ends_an_incident(detector):
    """
    A rank that stalls and then leaves in order has recovered.
    """
    run = [*steps(60), *progress(0, 5), *stall(5, 6), pulse(12.0, phase=Phase.DONE)]

    assert watch(detector, run)[-1].status is Status.RECOVERED


@both
def test_a_pause_of_the_monitor_is_no_stall(detector):
    """
    A machine that was suspended for a minute, monitor and ranks alike, is not hung; a stall
    that goes on after it is.
    """
    before = [*steps(60), *progress(0, 5)]
    suspended = [pulse(65.0 + 0.1 * i, since_progress_s=60.0 + 0.1 * i) for i in range(10)]
    stalled = [pulse(66.0 + 0.1 * i, since_progress_s=61.0 + 0.1 * i) for i in range(40)]

    assert watch(detector, [*before, *suspended]) == []
    assert any(b.is_actionable for b in watch(detector, [*before, *suspended, *stalled]))


@both
def test_a_monitor_that_looks_less_often_still_judges(detector):
    """
    A change from ten looks a second to one every two seconds is learned, not excused for
    ever.
    """
    slower = progress(5, 120, tick_s=2.0)
    run = [*steps(60), *progress(0, 5), *slower, *stall(125, 12, tick_s=2.0)]

    assert any(b.is_actionable for b in watch(detector, run))


def test_slow_models_are_not_stopped_by_a_limit_for_fast_ones():
    """
    With steps of 60 s and a limit of 30 s nothing is found in healthy steps; a phase that
    takes several times as long as ever is.
    """
    detector = HangLearned(limit_s=30.0)
    start = [*steps(8, step_s=60.0), *progress(0, 5)]
    longest_healthy_s = 0.4 * 60.0 * 1.3

    assert watch(detector, [*start, *stall(5, longest_healthy_s, phase=Phase.BACKWARD)]) == []
    (breach,) = watch(detector, [*start, *stall(5, 200.0, phase=Phase.BACKWARD)])
    assert 80.0 < breach.limit < 150.0


def test_the_first_batch_of_an_epoch_may_take_as_long_as_the_very_first():
    """
    Workers that start anew in each epoch take as long each time: nothing is said of that, and a
    wait of many times as long is a hang all the same, as is a stall in any other phase.
    """
    detector = HangLearned(limit_s=3.0)
    first = steps(1, is_warmup=True, data_s=4.0)
    before = [*first, *steps(100, first=1)]

    assert watch(detector, [*before, *progress(0, 5), *stall(5, 7, phase=Phase.DATA)]) == []
    (logged, *more) = watch(detector, [*before, *progress(0, 5), *stall(5, 24, phase=Phase.DATA)])
    assert (logged.limit, logged.is_actionable) == (8.0, False)
    assert [(one.limit, one.is_actionable) for one in more] == [(20.0, True)]
    assert watch(detector, [*before, *progress(0, 5), *stall(5, 4, phase=Phase.FORWARD)])


@pytest.mark.parametrize(("first_s", "limit_s"), [(300.0, 600.0), (float("inf"), 3.0)])
def test_a_very_first_batch_excuses_only_so_much(first_s, limit_s):
    """
    However long the very first batch took, a later one may last as long as a first step at
    most; and one whose time is not known excuses nothing.
    """
    detector = HangLearned(limit_s=3.0)
    before = [*steps(1, is_warmup=True, data_s=first_s), *steps(100, first=1), *progress(0, 5)]

    found = watch(detector, [*before, *stall(5, 700, phase=Phase.DATA)])

    assert [one.limit for one in found if one.is_actionable] == [limit_s]


def test_compile_steps_are_not_learned():
    """
    Twenty warm-up steps of 5 s, a recompiling one of 3 s and a hang of minutes do not make
    the limit any longer.
    """
    detector = HangLearned(limit_s=30.0)
    odd = [
        *steps(20, step_s=5.0, is_warmup=True),
        *steps(60),
        *steps(1, step_s=3.0, first=60),
        *steps(60, first=61),
        *steps(1, step_s=300.0, first=121),
    ]

    found = watch(detector, [*odd, *progress(0, 5), *stall(5, 40)])

    assert [b.is_actionable for b in found] == [False, True]
    assert found[0].limit < 1.5
    assert found[1].limit == 30.0


def test_what_lies_beside_an_evaluation_is_not_learned():
    """
    Step times that hold an evaluation of 8 s do not make the limit between steps longer.
    """
    detector = HangLearned()
    state = detector.start()
    for step in range(0, 100, 2):
        evaluation = [pulse(float(step), phase=Phase.EVALUATION)]
        long = steps(1, first=step, step_time_s=8.0)
        state, _ = watch_from(detector, state, [*evaluation, *long, *steps(1, first=step + 1)])

    _, found = watch_from(detector, state, [pulse(100.0), *stall(101, 1.5, phase=Phase.BETWEEN)])
    assert [b.limit for b in found] == [1.0]
    assert state.phases[-1].num_counted == 50


def test_healthy_pulses_find_nothing():
    """
    Steps of 20 ms to 2 s with pauses under the limits raise nothing in a long run.
    """
    for step_s in (0.02, 0.2, 2.0):
        run = [*steps(200, step_s=step_s)]
        for i in range(200):
            run += stall(float(i), 0.6)
        assert breaches(watch(HangLearned(), run)) == []


@pytest.mark.parametrize("kind", [HangLiteral, HangLearned])
def test_refuses_impossible_settings(kind):
    """
    The text names the setting and the value.
    """
    with pytest.raises(ValueError, match="checkpoint_limit_s must be above 0 seconds, got 0"):
        kind(checkpoint_limit_s=0)
    with pytest.raises(ValueError, match="warmup_steps must be at least 1, got 0"):
        kind(warmup_steps=0)


def test_learned_refuses_impossible_settings():
    """
    A learned limit needs room and a rate of exceptions that can be met.
    """
    with pytest.raises(ValueError, match="min_limit_s must be above 0 and at most max_limit_s"):
        HangLearned(min_limit_s=5.0, max_limit_s=1.0)
    with pytest.raises(ValueError, match="false_alarms_per_day must be above 0, got 0"):
        HangLearned(false_alarms_per_day=0)
    with pytest.raises(ValueError, match=r"hard_ratio must be at least 1, got 0\.5"):
        HangLearned(hard_ratio=0.5)
