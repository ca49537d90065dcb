"""Putting samples of one step together, within bounds."""

import pytest

from slav1.coordinator.rounds import MAX_OPEN, MAX_SAMPLES, MIN_OPEN, Rounds
from slav1.sample import Sample


def sample(rank: int, step: int) -> Sample:
    return Sample(rank=rank, step=step, time_s=0.0)


def test_round_is_complete_with_its_last_sample():
    """
    A round comes with the last rank's sample of its step, ordered by rank, whatever the
    order in which they came.
    """
    rounds = Rounds(3)
    assert rounds.add(sample(2, 5)) is None
    assert rounds.add(sample(0, 6)) is None
    assert rounds.add(sample(0, 5)) is None
    complete = rounds.add(sample(1, 5))

    assert complete is not None
    assert complete.step == 5
    assert [each.rank for each in complete.samples] == [0, 1, 2]


def test_sample_that_comes_twice_counts_once():
    """
    A rank that sends one step again does not stand for another rank.
    """
    rounds = Rounds(2)

    assert rounds.add(sample(0, 1)) is None
    assert rounds.add(sample(0, 1)) is None


@pytest.mark.parametrize("world_size", [2, 64, 1024, 100_000])
def test_what_waits_for_a_missing_rank_is_bounded(world_size):
    """
    When one rank's samples never come, the oldest steps are given up and counted, and the
    number of samples that are kept does not grow with the number of ranks.
    """
    rounds = Rounds(world_size)
    for step in range(3 * MAX_OPEN):
        rounds.add(sample(0, step))
    kept = 3 * MAX_OPEN - rounds.num_dropped

    assert MIN_OPEN <= kept <= MAX_OPEN
    assert kept == MIN_OPEN or kept * world_size <= MAX_SAMPLES


def test_steps_that_were_given_up_do_not_block_later_ones():
    """
    A round is complete again as soon as the missing rank is back.
    """
    rounds = Rounds(2)
    for step in range(2 * MAX_OPEN):
        rounds.add(sample(0, step))
    last = 2 * MAX_OPEN - 1

    assert rounds.add(sample(1, last)) is not None
    assert rounds.newest == last
