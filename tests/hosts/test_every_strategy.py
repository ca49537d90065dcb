"""Every way to spread a model, in both hosts, each with something that goes wrong.

What needs a GPU runs in ``tests/gpu/test_families.py``.
"""

from typing import Any

import pytest

from ._families import needs_deepspeed
from ._runs import entries, told

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.thorough]

NUM_STEPS = 40
SETTINGS = {"DS_ACCELERATOR": "cpu"}


def spread(host: str, *strategies: str) -> list[Any]:
    return [
        pytest.param(
            host, one, marks=[needs_deepspeed] if one.startswith(("zero", "deepspeed")) else []
        )
        for one in strategies
    ]


EVERY = [
    *spread("accelerate", "ddp", "fsdp2", "fsdp2+clip", "zero1", "zero2", "zero2-bf16", "zero3"),
    *spread(
        "lightning", "ddp", "fsdp2", "fsdp_sharded", "deepspeed_1", "deepspeed_2", "deepspeed_3"
    ),
]


@pytest.mark.parametrize(("host", "strategy"), EVERY)
def test_a_nan_on_one_rank_is_recovered_from(ranks: Any, host: str, strategy: str) -> None:
    """
    After a NaN on one rank the update is left out on both where all know that it is bad, else
    both go back to the last good checkpoint; the run comes to its end with weights that are
    finite and, put together, the same on both ranks.
    """
    env = SETTINGS | {"SLA_INJECT": "nan:rank=1,step=12"}
    ended = ranks("every_strategy.py", host, strategy, NUM_STEPS, env=env)

    assert ended.succeeded(), ended
    one, other = (told(ended.out[rank], "ended") for rank in (0, 1))
    assert one["weights"]["is_finite"] and other["weights"]["is_finite"]
    if strategy != "fsdp_sharded":
        assert one["weights"] == other["weights"]
    assert one["stopped_at"] is None and one["last_step"] >= NUM_STEPS - 8
    ledger = entries(ranks.run_dir)
    breach = next(e for e in ledger if e.kind == "breach" and e.rank == 1)
    assert (breach.rule, breach.step) == ("non_finite", 12)
    restored = [e.step for e in ledger if e.kind == "restored"]
    knows_norm = host == "accelerate" and strategy == "fsdp2+clip"
    leaves_out = knows_norm or strategy.startswith(("ddp", "zero", "deepspeed"))
    assert restored == ([] if leaves_out else [9])
    if leaves_out:
        assert "the weights are as before" in breach.message
        assert (breach.action, one["last_step"]) == ("skip_batches", NUM_STEPS - 1)


def test_clipping_of_parts_is_the_host_s_with_a_norm_that_can_be_read(ranks: Any) -> None:
    """
    Gradients that are spread over ranks are clipped to the same bits as by the host, with as
    many collectives, and each rank gets the norm of all.
    """
    ended = ranks("clipping.py")

    assert ended.succeeded(), ended
    one, other = (told(ended.out[rank], "clipped") for rank in (0, 1))
    assert one["are_parts"] == [True, False, False, False]
    assert len(one["times"]) == 3
    for here, there in zip(one["times"], other["times"], strict=True):
        assert here["same"] and there["same"]
        assert here["collectives"][0] == here["collectives"][1] > 0
        assert len({*here["norms"], *there["norms"]}) == 1
