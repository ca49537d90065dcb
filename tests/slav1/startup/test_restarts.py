"""What stands in the way of a restart is said at the first start."""

import pytest

from slav1.startup.restarts import restart_hazard

ELASTIC = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}


def test_gloo_behind_a_store_that_outlives_its_ranks_is_named():
    """
    Restarts, a shared store and gloo together are a hazard, and the sentence names the
    variable that takes it away.
    """
    said = restart_hazard(ELASTIC, "cpu:gloo,cuda:nccl")

    assert said is not None
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in said


@pytest.mark.parametrize(
    ("changes", "backend"),
    [
        ({}, "nccl"),
        ({"TORCHELASTIC_MAX_RESTARTS": "0"}, "gloo"),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, "gloo"),
    ],
)
def test_nothing_is_said_where_all_is_well(changes, backend):
    """
    NCCL, no restarts, or a new store for each start give no word.
    """
    assert restart_hazard({**ELASTIC, **changes}, backend) is None
    assert restart_hazard({}, "gloo") is None
