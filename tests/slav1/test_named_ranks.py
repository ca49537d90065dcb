"""How ranks are named in a sentence."""

import pytest

from slav1.named_ranks import MOST, named, numbers


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], "none"), ([3], "3"), ([0, 3], "0, 3"), (range(1000), "and 984 more")],
    ids=["none", "one", "two", "many"],
)
def test_a_sentence_stays_short(ranks, text):
    """
    However many ranks there are, a sentence names the first of them and tells how many follow.
    """
    assert numbers(ranks).endswith(text)
    assert numbers(ranks).count(",") < MOST


def test_one_rank_is_no_ranks():
    """
    The word agrees with the number.
    """
    assert (named([1]), named([1, 2])) == ("rank 1", "ranks 1, 2")
