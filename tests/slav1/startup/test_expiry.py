"""What a guard says when time has run out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slav1.startup._expiry import Expiry, as_ranges, stack_of


def expiry(**changed):
    known = {
        "phase": "ddp_init",
        "waited_s": 120.0,
        "concluded_by": 0,
        "rank": 0,
        "world_size": 4,
        "arrived": frozenset({0, 1, 3}),
        "address": "node0:29500",
        "is_store_reached": True,
        "is_one_node": False,
    }
    return Expiry(**known | changed)


def line(text, start):
    return next(line for line in text.splitlines() if line.strip().startswith(start))


def test_it_says_what_is_known():
    """
    The phase, the time, who is here and who is not, the stack and the exit code.
    """
    text = expiry().text("  File here\n")

    assert text.startswith("slav1: phase 'ddp_init' had not ended after 120 s.\n")
    assert line(text, "arrived:").endswith("0-1, 3")
    assert line(text, "not arrived:").endswith(" 2")
    assert "Where rank 0 is (most recent call last):\n  File here\nWhat to try:" in text
    assert text.endswith("exit code 70.\n")


def test_it_says_whose_time_ran_out():
    """
    A rank that ends because another one's time ran out names that one.
    """
    assert "after 120 s on rank 2." in expiry(concluded_by=2).text("")


def test_without_the_store_it_does_not_claim_to_see_other_machines():
    """
    Ranks of other machines are only called missing when the store says so, or when all
    ranks are known to be on this machine.
    """
    blind = expiry(is_store_reached=False, rank=1, arrived=frozenset({1}))

    assert "(ranks of other machines can't be seen" in line(blind.text(""), "not arrived:")
    assert "node0:29500 could not be reached" in line(blind.text(""), "store:")
    silent = expiry(is_store_reached=False)
    assert "node0:29500 does not answer" in line(silent.text(""), "store:")
    near = expiry(is_store_reached=False, is_one_node=True)
    assert line(near.text(""), "not arrived:").endswith(" 2")


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({}, "Read the logs of rank 2:"),
        ({"arrived": frozenset(range(4))}, "All ranks are here"),
        ({"left": frozenset({3})}, "Rank 3 was here and is not any more"),
        ({"is_store_reached": False, "rank": 1}, "is node0:29500 its address"),
        ({"world_size": None}, "a launcher that sets RANK and WORLD_SIZE"),
        ({"is_rank_taken": True}, "Another process of this machine is rank 0 too"),
    ],
)
def test_the_advice_fits(changed, advice):
    """
    What to try depends on what is known.
    """
    assert advice in expiry(**changed).text("").split("What to try:")[1]


@given(ranks=st.sets(st.integers(0, 60)))
def test_ranges_read_back(ranks):
    """
    The short form of rank numbers names exactly those ranks.
    """
    text = as_ranges(ranks)
    read = set()
    for part in text.split(", ") if ranks else []:
        low, _, high = part.partition("-")
        read |= set(range(int(low), int(high or low) + 1))

    assert read == ranks
    assert ranks or text == "none"


def test_a_thread_that_has_ended_has_no_stack():
    """
    If the thread that set the guard is gone, that is said.
    """
    assert "has ended" in stack_of(-1)
