"""Every way to spread a model over two GPUs, in both hosts, each with something that goes wrong.

The same training runs on processors in ``tests/hosts/test_every_strategy.py``.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slav1.ledger import Entry, read_ledger
from slav1.recorder.ring import read_ring_file

SCRIPT = Path(__file__).parents[1] / "hosts" / "_scripts" / "every_strategy.py"
NUM_STEPS = 40

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.skipif(
        torch.cuda.device_count() < 2, reason="needs two GPUs; this machine has fewer"
    ),
]

SHARDED = [
    ("accelerate", "fsdp"),
    ("accelerate", "fsdp2"),
    ("lightning", "fsdp_sharded"),
    ("lightning", "fsdp2"),
]
READING = ("ckpt_success", "loss_variance", "memory_drift", "seed_contract", "update_skew")
CLIPPED = [("accelerate", "fsdp+clip"), ("accelerate", "fsdp2+clip")]
EVERY = [("accelerate", "ddp"), ("lightning", "ddp"), *SHARDED, *CLIPPED]


def environment(launch: Any, fault: str) -> dict[str, str]:
    return {
        "SLA_INJECT": fault,
        "SLA_RUN_DIR": str(launch.folder / "runs"),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def ledger(launch: Any) -> list[Entry]:
    (path,) = (launch.folder / "runs").glob("*/ledger.jsonl")
    return list(read_ledger(path))


def told(out: str) -> dict[str, Any]:
    (line,) = (line for line in out.splitlines() if line.startswith('{"tell"'))
    said: dict[str, Any] = json.loads(line)
    return said


@pytest.mark.parametrize(("host", "strategy"), EVERY)
def test_a_nan_on_one_gpu_is_recovered_from(launch: Any, host: str, strategy: str) -> None:
    """
    After a NaN on one rank the update is left out on both where each holds the whole gradient
    or the norm that clipping has reduced, else both go back to the last good checkpoint; the
    run comes to its end with weights that are finite and, put together, the same on both ranks.
    The rules that judge numbers have got them, memory of the GPU included.
    """
    ended = launch(
        SCRIPT,
        args=[host, strategy, str(NUM_STEPS)],
        env=environment(launch, "nan:rank=1,step=12"),
        timeout_s=120,
    )

    assert ended.succeeded(), ended
    one, other = told(ended.out[0]), told(ended.out[1])
    assert one["weights"] == other["weights"]
    assert one["weights"]["is_finite"] and one["weights"]["num"] == 58
    assert one["stopped_at"] is None and one["last_step"] >= NUM_STEPS - 8
    entries = ledger(launch)
    breach = next(e for e in entries if e.kind == "breach" and e.rank == 1)
    assert (breach.rule, breach.step) == ("non_finite", 12)
    num_read = {e.rule: e.evidence["num_samples"] for e in entries if e.kind == "verdict"}
    assert all(num_read[rule] > 0 for rule in READING), num_read
    samples = list(read_ring_file(next((launch.folder / "runs").glob("*/ring-1.bin"))))
    assert any(sample.allocated_mib for sample in samples)
    restored = [e.step for e in entries if e.kind == "restored"]
    assert restored == ([] if strategy == "ddp" or "clip" in strategy else [9])


@pytest.mark.parametrize(("host", "strategy"), SHARDED)
def test_a_hang_on_one_gpu_is_named(launch: Any, host: str, strategy: str) -> None:
    """
    A rank that hangs while the other waits for its part is named, and every process ends
    non-zero.
    """
    ended = launch(
        SCRIPT,
        args=[host, strategy, str(NUM_STEPS)],
        env=environment(launch, "hang:rank=1,step=12"),
        timeout_s=120,
    )

    assert 0 not in ended.exit_codes.values(), ended
    breach = next(e for e in ledger(launch) if e.kind == "breach" and e.rule == "hang")
    assert (breach.rank, breach.phase) == (1, "forward")


@pytest.mark.parametrize(("host", "strategy"), [("accelerate", "fsdp"), ("lightning", "fsdp2")])
def test_after_a_kill_training_goes_on_from_the_last_good_checkpoint(
    launch: Any, host: str, strategy: str
) -> None:
    """
    A rank that was killed is named, torchrun starts the job again, and it goes on after the
    newest checkpoint, up to its last step.
    """
    ended = launch.torchrun(
        SCRIPT,
        args=[host, strategy, str(NUM_STEPS)],
        env=environment(launch, "kill:rank=1,step=12"),
        max_restarts=1,
        timeout_s=180,
    )

    assert ended.succeeded(), ended
    said = told(ended.out[0])
    assert (said["starts_at"], said["last_step"]) == (10, NUM_STEPS - 1)
    entries = ledger(launch)
    breach = next(e for e in entries if e.kind == "breach")
    assert (breach.rule, breach.rank) == ("liveness", 1)
    (restored,) = (e for e in entries if e.kind == "restored")
    assert (restored.attempt, restored.step) == (1, 9)


@pytest.mark.parametrize("host", ["accelerate", "lightning"])
def test_a_flipped_bit_under_ddp_is_undone(launch: Any, host: str) -> None:
    """
    A bit that flips on one GPU is found at the next look, which runs beside a backward; both
    ranks go back to before it, come to the end and hold the same.
    """
    ended = launch(
        SCRIPT,
        args=[host, "ddp", str(NUM_STEPS)],
        env=environment(launch, "bitflip:rank=1,step=15,bit=20"),
        timeout_s=120,
    )

    assert ended.succeeded(), ended
    one, other = told(ended.out[0]), told(ended.out[1])
    assert one["weights"] == other["weights"]
    entries = ledger(launch)
    breach = next(e for e in entries if e.kind == "breach")
    assert (breach.rule, breach.rank, breach.step) == ("replica_divergence", None, 15)
    assert [e.step for e in entries if e.kind == "restored"] == [9]
