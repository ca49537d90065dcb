"""Ranks that work slower than their peers."""

from dataclasses import replace
from statistics import median

import pytest
from _detector_tools import breaches, brief, self_times, watch

from slav1.breach import Status
from slav1.detectors import StragglerSequential
from slav1.phase import Phase
from slav1.sample import Round

ONSET = 300


def first_breach(num_ranks: int, slowdown: float, seed: int):
    rounds = self_times(
        num_ranks,
        ONSET + 150,
        seed=seed,
        slow_rank=seed % num_ranks,
        slowdown=slowdown,
        start=ONSET,
    )
    found = breaches(watch(StragglerSequential(), rounds))
    return found[0] if found else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_ranks", "slowdown", "limit"),
    [(2, 1.15, 60), (2, 1.25, 25), (2, 1.5, 25), (4, 1.15, 65), (4, 1.25, 30), (4, 2.0, 15)],
)
def test_names_the_right_rank_in_time(num_ranks, slowdown, limit):
    """
    Whatever the slowdown, the right rank is named in every run, in the median within the
    published number of rounds.
    """
    found = [first_breach(num_ranks, slowdown, seed) for seed in range(9)]

    assert [each.rank for each in found] == [seed % num_ranks for seed in range(9)]
    assert all(each.step >= ONSET for each in found)
    assert median(each.step - ONSET + 1 for each in found) <= limit


@pytest.mark.slow
@pytest.mark.parametrize("imbalance", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_is_silent_on_healthy_ranks(num_ranks, imbalance):
    """
    Thousands of rounds with noise, pauses and a permanent imbalance raise nothing.
    """
    rounds = self_times(num_ranks, 5_000, seed=11, imbalance=imbalance)

    assert watch(StragglerSequential(), rounds) == []


@pytest.mark.slow
def test_keeps_its_claim():
    """
    On identical ranks, with every slowdown worth a word, false alarms are at least 0.8 of
    ARL0 apart.
    """
    detector = StragglerSequential(arl0=2_000, min_slowdown_ratio=1.000001, baseline_rounds=1_000)
    rounds = self_times(4, 21_000, seed=12, imbalance=0.0)

    assert 20_000 / max(1, len(breaches(watch(detector, rounds)))) > 0.8 * 2_000


@pytest.mark.parametrize("part", ["data_s", "forward_s", "backward_s", "optimizer_s"])
def test_names_the_phase_and_the_factor(part):
    """
    The breach says in which phase the time is lost, about how much, and that the peers wait
    as much longer; it is only logged.
    """
    rounds = self_times(
        3, 450, seed=2, slow_rank=2, slowdown=1.5, start=ONSET, part=part, imbalance=0.0
    )

    (breach,) = watch(StragglerSequential(), rounds)

    assert breach.phase is Phase[part.removesuffix("_s").upper()]
    assert breach.evidence["slowdown_ratio"] == pytest.approx(1.5, abs=0.15)
    assert breach.evidence["peers_sync_growth_s"] == pytest.approx(0.1, abs=0.04)
    assert not breach.is_actionable


def test_an_incident_ends_with_the_slowdown():
    """
    One breach, one recovery, and the next slowdown is found again.
    """
    again = self_times(2, 600, seed=4, slowdown=1.5, start=ONSET, end=400)
    once_more = self_times(2, 60, seed=5, slowdown=1.5)

    found = watch(StragglerSequential(), [*again, *once_more])

    assert [b.status for b in found] == [Status.BREACH, Status.RECOVERED, Status.BREACH]
    assert 400 < found[1].step < 550


def test_is_silent_when_all_are_slow_or_one_step_is():
    """
    Twice as slow on every rank at once, or one step of 10 s on one rank, is no straggler.
    """
    rounds = list(self_times(2, 700, seed=6))
    all_slow = rounds[:400] + [
        replace(r, samples=tuple(replace(s, backward_s=2 * s.backward_s + 0.1) for s in r.samples))
        for r in rounds[400:]
    ]
    spike = rounds[450]
    one_slow = replace(spike.samples[1], forward_s=10.0)
    rounds[450] = replace(spike, samples=(spike.samples[0], one_slow))

    assert watch(StragglerSequential(), all_slow) == []
    assert watch(StragglerSequential(), rounds) == []


def test_one_rank_is_never_a_straggler():
    """
    A job of one rank is silent.
    """
    alone = [
        Round(step=r.step, samples=r.samples[:1])
        for r in self_times(2, 500, seed=7, slowdown=2.0, start=ONSET)
    ]

    assert watch(StragglerSequential(), alone) == []


def test_compiling_rounds_are_left_out():
    """
    Warm-up rounds, at different times on different ranks, neither spoil what is learned nor
    count as slow; what is slow afterwards is found.
    """
    rounds = list(self_times(2, 460, seed=8, slow_rank=1, slowdown=1.5, start=400))
    for i in (*range(5), *range(310, 350)):
        first = replace(rounds[i].samples[0], forward_s=6.0, is_warmup=True)
        rounds[i] = replace(rounds[i], samples=(first, *rounds[i].samples[1:]))

    (breach,) = watch(StragglerSequential(), rounds)

    assert (breach.rank, breach.status) == (1, Status.BREACH)
    assert 400 <= breach.step < 430


def test_unknown_times_are_left_out():
    """
    Rounds in which a rank did not measure change nothing.
    """
    rounds = list(self_times(2, 440, seed=9, slowdown=1.5, start=400))
    unknown = dict.fromkeys(("data_s", "forward_s", "backward_s", "optimizer_s", "sync_s"))
    gap = replace(
        rounds[100], samples=(replace(rounds[100].samples[0], **unknown), rounds[100].samples[1])
    )

    assert brief(watch(StragglerSequential(), [*rounds[:100], gap, *rounds[100:]])) == brief(
        watch(StragglerSequential(), rounds)
    )


def test_a_job_of_another_size_starts_anew():
    """
    After ten rounds with other ranks everything is learned afresh; a single such round
    changes nothing.
    """
    two, three = list(self_times(2, 450, seed=10)), list(self_times(3, 260, seed=10))
    detector = StragglerSequential()

    assert watch(detector, [*two[:300], three[0], *two[300:]]) == []
    slower = self_times(3, 60, seed=13, slow_rank=2, slowdown=1.5)
    found = watch(detector, [*two, *three, *slower])
    assert [b.rank for b in found] == [2]


def test_refuses_impossible_settings():
    """
    The text names the setting and the value.
    """
    with pytest.raises(ValueError, match="min_slowdown_ratio must be above 1, got 1"):
        StragglerSequential(min_slowdown_ratio=1)
    with pytest.raises(ValueError, match="baseline_rounds must be at least 10, got 0"):
        StragglerSequential(baseline_rounds=0)


def test_is_silent_where_a_slowdown_costs_nothing():
    """
    A rank that is 1.5 times slower is named in steps of 200 ms, and not in steps a thousand
    times shorter, where it costs a tenth of a millisecond.
    """
    rounds = list(self_times(2, ONSET + 150, seed=3, slow_rank=1, slowdown=1.5, start=ONSET))
    short = [
        replace(
            each,
            samples=tuple(
                replace(
                    sample,
                    **{
                        part: getattr(sample, part) and getattr(sample, part) / 1000
                        for part in ("data_s", "forward_s", "backward_s", "optimizer_s")
                    },
                )
                for sample in each.samples
            ),
        )
        for each in rounds
    ]

    assert [each.rank for each in breaches(watch(StragglerSequential(), rounds))] == [1]
    assert watch(StragglerSequential(), short) == []
