"""How the answers of a health probe are judged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slav1.startup import HealthProbeError, validate_nccl_health
from slav1.startup._channels import (
    device_by_backend,
    sum_mistake,
    values_of,
    view_mistake,
    view_of,
)

groups = st.lists(st.integers(0, 2000), min_size=1, max_size=8, unique=True)


@pytest.mark.slow
@given(ranks=groups)
def test_right_answers_pass(ranks):
    """
    The true sum and the true views of any group are accepted.
    """
    sums = [sum(column) for column in zip(*map(values_of, ranks), strict=True)]

    assert sum_mistake(sums, ranks) is None
    assert view_mistake([view_of(ranks, rank) for rank in ranks], ranks) is None


@pytest.mark.slow
@given(ranks=groups, data=st.data())
def test_any_wrong_answer_is_found(ranks, data):
    """
    One number off by anything, a rank left out or doubled, or a view of another group
    is found.
    """
    sums = [sum(column) for column in zip(*map(values_of, ranks), strict=True)]
    place = data.draw(st.integers(0, len(sums) - 1))
    off = data.draw(st.integers(-(2**40), 2**40).filter(bool))
    views = [view_of(ranks, rank) for rank in ranks]
    other = data.draw(st.integers(0, len(ranks) - 1))

    changed = [*sums[:place], sums[place] + off, *sums[place + 1 :]]
    assert f"for number {place}" in sum_mistake(changed, ranks)
    without = [total - own for total, own in zip(sums, values_of(ranks[0]), strict=True)]
    assert sum_mistake(without, ranks) is not None
    views[other] = view_of([*ranks, 3000], ranks[other])
    assert f"from rank {ranks[other]}" in view_mistake(views, ranks)


def test_ranks_that_see_different_orders_are_found():
    """
    Two ranks that hold the same members in another order do not agree.
    """
    assert view_mistake([view_of([1, 0], 0), view_of([1, 0], 1)], [0, 1]) is not None


def test_each_backend_is_probed_once():
    """
    A backend that serves several devices is probed on the CPU if it can.
    """
    assert device_by_backend("cpu:gloo") == {"gloo": "cpu"}
    assert device_by_backend("cuda:gloo,cpu:gloo") == {"gloo": "cpu"}
    assert device_by_backend("cuda:nccl") == {"nccl": "cuda"}
    assert device_by_backend("cpu:gloo,cuda:nccl") == {"gloo": "cpu", "nccl": "cuda"}


def test_the_error_holds_its_facts():
    """
    The error says which group, which backend, who answered and who did not, and what to
    look at.
    """
    error = HealthProbeError(
        group="default",
        backend="nccl",
        answered=[0, 1, 3],
        silent=[2],
        reason="it did not answer within 15 s",
        found_by=3,
    )

    assert "Process group 'default' (nccl)" in str(error)
    assert "answered over the store: 0-1, 3; that did not: 2." in str(error)
    assert "logs and stacks of the silent ranks" in str(error)
    assert (error.answered, error.silent, error.found_by) == ((0, 1, 3), (2,), 3)


@pytest.mark.parametrize(("timeout", "error"), [(0, ValueError), ("15", TypeError)])
def test_a_time_out_that_is_none_is_refused(timeout, error):
    """
    Only a number of seconds above 0 is a time-out.
    """
    with pytest.raises(error, match="timeout_sec must be"):
        validate_nccl_health(timeout_sec=timeout)
