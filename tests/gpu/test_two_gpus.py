"""What needs two GPUs and NCCL. Skipped elsewhere."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.skipif(
        torch.cuda.device_count() < 2, reason="needs two GPUs; this machine has fewer"
    ),
]


def _runs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_runs", BENCHMARKS / "_runs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_runs"] = module
    spec.loader.exec_module(module)
    return module


def _run(faults, clauses=None, **options):
    given = {"accelerator": "gpu", "ranks": 2, "steps": 200, "step_ms": 20, **options}
    override = {"hang": {"limit_s": 4}, **(clauses or {})}
    return _runs().run_job(faults=faults, limit_s=120, override=override, **given)


def test_a_healthy_run_on_nccl_is_left_alone():
    """
    A healthy run on two GPUs has no breach, and all its losses were seen.
    """
    run = _run("")

    assert run.status == 0
    assert [e for e in run.entries if e.kind in ("breach", "decision")] == []
    seen = [e.evidence["num_samples"] for e in run.entries if e.kind == "verdict"]
    assert max(seen) >= 400


def test_ranks_on_nccl_stop_at_the_same_step():
    """
    A loss that is not finite on rank 1 stops both ranks at one step, without a device sync
    of ours.
    """
    run = _run("nan:rank=1,step=100")

    steps = [
        e.evidence["at_step"] for e in run.entries if e.kind == "action" and e.rank is not None
    ]
    breach = next(e for e in run.entries if e.kind == "breach")
    assert run.status == 0
    assert (breach.rule, breach.rank, breach.step) == ("non_finite", 1, 100)
    assert len(steps) == 2
    assert len(set(steps)) == 1


@pytest.mark.parametrize("where", ["forward", "data"])
def test_a_hang_on_nccl_is_named(where):
    """
    A rank that hangs while the other waits in NCCL is named, and every process ends non-zero.
    """
    run = _run(f"hang:rank=1,step=80,where={where}")

    breach = next(e for e in run.entries if e.kind == "breach" and e.rule == "hang")
    assert breach.rank == 1
    assert breach.phase == where
    assert run.status != 0


def test_a_killed_rank_on_nccl_is_found():
    """
    A killed rank is named although NCCL itself gives no sign, and the job ends non-zero.
    """
    run = _run("kill:rank=1,step=80")

    breach = next(e for e in run.entries if e.kind == "breach")
    assert (breach.rule, breach.rank) == ("liveness", 1)
    assert run.status != 0


@pytest.mark.parametrize(
    ("what", "place", "mebibytes"),
    [("parameter", ("layer.0.weight", "parameter"), 0), ("optimizer", ("ballast", "exp_avg"), 48)],
)
def test_a_flipped_bit_is_found_named_and_undone(what, place, mebibytes):
    """
    One bit that flips in the memory of one GPU is found at the next look, with the tensor and
    both suspects, and both ranks go back to before it and come to the end.
    """
    run = _run(
        f"bitflip:rank=1,step=105,bit=20,what={what}",
        {"replica_divergence": {"every_steps": 20}, "checkpoint": {"every_steps": 25}},
        mebibytes=mebibytes,
    )

    assert run.status == 0, run.output
    breaches = [e for e in run.entries if e.kind == "breach"]
    assert {e.rule for e in breaches} == {"replica_divergence"}
    assert (breaches[0].rank, breaches[0].step) == (None, 120)
    assert breaches[0].evidence["suspects"] == [0, 1]
    named = {(one["parameter"], one["tensor"]) for one in breaches[0].evidence["differing"]}
    assert place in named
    assert [e.step for e in run.entries if e.kind == "restored"] == [99]
