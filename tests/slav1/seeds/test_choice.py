"""Where the seed of a run comes from, and what each rank makes of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slav1.contract import SeedSettings
from slav1.seeds import choose, is_set, make_seed, offset_of

BARE = {"script": None, "earlier": None, "job": "job", "time_ns": 1}


def test_code_wins_over_the_environment_and_a_made_seed_comes_last():
    """
    The contract's seed comes before the script's, that before ``SLA_SEED``, that before the
    one of an earlier start, and only without any of them one is made.
    """
    asked = SeedSettings(mode="set", seed=1)
    everything = {**BARE, "script": 2, "earlier": 4}
    variable = {"SLA_SEED": "3"}

    assert choose(asked, variable, **everything) == (1, "contract")
    assert choose(SeedSettings(), variable, **everything) == (2, "script")
    assert choose(SeedSettings(), variable, **{**BARE, "earlier": 4}) == (3, "SLA_SEED")
    assert choose(SeedSettings(), {}, **{**BARE, "earlier": 4}) == (4, "earlier start")
    assert choose(SeedSettings(), {}, **BARE) == (make_seed("job", 1), "made")


@pytest.mark.parametrize("text", ["", "x", "-1", "4294967296", "1.5"])
def test_a_variable_that_is_no_seed_is_refused(text):
    """
    A value of ``SLA_SEED`` that no generator takes is refused by name, value and range.
    """
    with pytest.raises(ValueError, match=f"SLA_SEED={text} must be a whole number from 0 to"):
        choose(SeedSettings(), {"SLA_SEED": text}, **BARE)
    with pytest.raises(ValueError, match=f"SLA_SEED={text} must be a whole number from 0 to"):
        is_set(SeedSettings(), {"SLA_SEED": text})


def test_a_seed_in_the_environment_asks_for_seeds_to_be_set():
    """
    ``SLA_SEED`` turns looking into setting, and never what the contract has switched off.
    """
    variable = {"SLA_SEED": "3"}

    assert not is_set(SeedSettings(), {})
    assert is_set(SeedSettings(), variable)
    assert not is_set(SeedSettings(mode="off"), variable)


@settings(max_examples=30)
@given(job=st.text(), time_ns=st.integers(0, 1 << 62))
def test_a_made_seed_hangs_on_job_and_time_alone(job, time_ns):
    """
    The same job and time stamp make the same seed, which every generator takes.
    """
    seed = make_seed(job, time_ns)

    assert seed == make_seed(job, time_ns)
    assert 0 <= seed < 1 << 32
    assert seed != make_seed(job, time_ns + 1)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_ranks_draw_alike_exactly_within_their_group(owners):
    """
    Two ranks have one offset if and only if they are in one group, and the lowest rank of a
    group has its own.
    """
    groups = [[r for r, owner in enumerate(owners) if owner == one] for one in set(owners)]

    offsets = [offset_of(rank, groups) for rank in range(len(owners))]

    for one, mine in enumerate(owners):
        assert offsets[one] in (one, offsets[groups[0][0]], *offsets[:one])
        for other, theirs in enumerate(owners):
            assert (offsets[one] == offsets[other]) == (mine == theirs)
