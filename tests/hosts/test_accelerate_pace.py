"""Which optimizer ends a step, where ranks run: what needs no training."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sla_accelerate._pace import Pace
from sla_accelerate._place import Place, check_launch, place_of, words_of_launcher
from sla_accelerate.actions import check_on_stop


def ends(order: str, *, num_optimizers: int | None = None) -> str:
    """The optimizers of ``order`` one after another; a dot where no step ended."""
    pace = Pace()
    num = num_optimizers or len(set(order))
    return "".join(name if pace.ends_step(ord(name), num_optimizers=num) else "." for name in order)


def test_one_optimizer_ends_every_step():
    """
    With a single optimizer each of its steps is a step, from the first on.
    """
    assert ends("AAAA") == "AAAA"


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("ABABABAB", "...B.B.B"),
        ("ABCABCABC", ".....C..C"),
        ("AABAABAAB", ".A.AA.AA."),
        ("ABBABB", "..B.BB"),
    ],
)
def test_the_last_optimizer_of_an_iteration_ends_the_step(order, expected):
    """
    With several optimizers the one that comes last before the first one repeats sets the pace.
    """
    assert ends(order) == expected


def test_an_optimizer_that_is_prepared_but_never_steps_holds_up_nothing():
    """
    Two are prepared and one is used: its steps count from the second on.
    """
    assert ends("AAAA", num_optimizers=2) == ".AAA"


def test_an_optimizer_that_rests_gives_the_pace_away():
    """
    When the one that set the pace is frozen, another one has taken over after one round.
    """
    assert ends("ABABABAAAA") == "...B.B.AAA"
    assert ends("ABCABCABABAB") == ".....C..A.A."


@given(st.lists(st.sampled_from("ABC"), max_size=200))
def test_steps_never_stop_ending(order):
    """
    Whatever the order of three optimizers, there is never a long stretch without a step.
    """
    quiet = re.split("[ABC]", ends("".join(order), num_optimizers=3))

    assert max(map(len, quiet)) <= 5


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Place(0, 1)),
        ({"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}, Place(1, 2)),
        ({"LOCAL_WORLD_SIZE": "2"}, Place(2, 4)),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, Place(1, 2)),
        ({"PATH": "/bin", "RANK": "5"}, Place(0, 1)),
        ({"SLURM_PROCID": "5", "SLURM_NODEID": "3", "SLURM_NNODES": "4"}, Place(3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NODEID": "3"}, Place(0, 1)),
    ],
)
def test_a_rank_knows_its_node(environment, place):
    """
    Rank 5 of 8 finds its node in what torchrun, Slurm or MPI say; Slurm only if it is
    Slurm that started the rank.
    """
    words = words_of_launcher(environment)

    assert place_of(5, 5 % int(words.get("LOCAL_WORLD_SIZE", 4)), 8, words) == place


def test_a_number_of_ranks_that_can_not_be_is_refused():
    """
    A local rank that does not fit the number of ranks on a node is an error at once, not
    a rank that waits for a monitor nobody starts.
    """
    with pytest.raises(ValueError, match="LOCAL_WORLD_SIZE=1 can't be: rank 1 of 2"):
        place_of(1, 1, 2, {"LOCAL_WORLD_SIZE": "1"})


def test_processes_that_would_train_side_by_side_are_refused():
    """
    Several processes that each believe to be alone never train unnoticed.
    """
    with pytest.raises(ValueError, match="started 2 processes"):
        check_launch(1, {"LOCAL_RANK": "0", "WORLD_SIZE": "2"})

    check_launch(2, {"LOCAL_RANK": "0", "WORLD_SIZE": "2"})
    check_launch(1, {"WORLD_SIZE": "2"})


def test_on_stop_is_one_of_two():
    """
    Another word for on_stop is refused with both words named.
    """
    with pytest.raises(ValueError, match="'raise' or 'flag', got 'stop'"):
        check_on_stop("stop")

    assert check_on_stop("flag") == "flag"
