"""Every way to spread a model over two GPUs, in all hosts, each with something that goes wrong.

The same training runs on processors in ``tests/hosts/test_every_strategy.py``. ``docs/parity.md``
says which of these have not run yet.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slav1.checkpoint.verify import verify_path
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

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def of_trainer(*strategies: str) -> list[Any]:
    """Cases of a ``transformers.Trainer``."""
    return [pytest.param("transformers", one, marks=needs_transformers) for one in strategies]


# What processors can't run: there the first generation of FSDP is not to be had in two hosts.
FIRST = [("accelerate", "fsdp"), *of_trainer("fsdp")]
SHARDED = [
    *FIRST,
    ("accelerate", "fsdp2"),
    ("lightning", "fsdp_sharded"),
    ("lightning", "fsdp2"),
]
READING = ("ckpt_success", "loss_variance", "memory_drift", "seed_contract", "update_skew")
CLIPPED = [("accelerate", "fsdp+clip"), ("accelerate", "fsdp2+clip")]
DDP = [("accelerate", "ddp"), ("lightning", "ddp")]
EVERY = [*DDP, *SHARDED, *CLIPPED, *of_trainer("ddp", "fsdp2")]


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
    assert one["weights"]["is_finite"]
    assert one["weights"]["num"] == 58 or host == "transformers"
    assert one["stopped_at"] is None and one["last_step"] >= NUM_STEPS - 8
    entries = ledger(launch)
    breach = next(e for e in entries if e.kind == "breach" and e.rank == 1)
    assert (breach.rule, breach.step) == ("non_finite", 12)
    num_read = {e.rule: e.evidence["num_samples"] for e in entries if e.kind == "verdict"}
    assert all(num_read[rule] > 0 for rule in READING), num_read
    samples = list(read_ring_file(next((launch.folder / "runs").glob("*/ring-1.bin"))))
    assert any(sample.allocated_mib for sample in samples)
    restored = [e.step for e in entries if e.kind == "restored"]
    # A transformers Trainer always has the norm of all gradients computed.
    has_norm = strategy == "ddp" or "clip" in strategy or host == "transformers"
    assert restored == ([] if has_norm else [9])


@pytest.mark.parametrize(("host", "strategy"), FIRST)
def test_a_stop_ends_both_gpus_at_one_step(launch: Any, host: str, strategy: str) -> None:
    """
    Where the contract stops training for a NaN, both ranks end it at the end of the same step,
    in good order.
    """
    stops = {"non_finite": {"mode": "enforce", "action": "stop"}}
    ended = launch(
        SCRIPT,
        args=[host, strategy, str(NUM_STEPS), json.dumps(stops)],
        env=environment(launch, "nan:rank=1,step=12"),
        timeout_s=120,
    )

    assert ended.succeeded(), ended
    (stopped_at,) = {told(ended.out[rank])["stopped_at"] for rank in (0, 1)}
    assert 12 <= stopped_at < NUM_STEPS - 1
    carried_out = [e for e in ledger(launch) if e.kind == "action" and e.rank is None]
    assert [(e.action, e.step) for e in carried_out] == [("stop", stopped_at)]


LADDER = """package slav1.decision
action := "snapshot" if input.breach.step < 24
action := "clip_and_decay" if input.breach.step >= 24
"""


@pytest.mark.parametrize(("host", "strategy"), FIRST)
def test_two_bad_losses_lead_to_milder_actions(launch: Any, host: str, strategy: str) -> None:
    """
    With seeds set ranks begin with equal weights and draw numbers of their own; a loss that is
    no number leads to a snapshot that nobody resumes from, another one to lower learning rates
    in the same updates of both ranks, and training goes on to its end.
    """
    policy = launch.folder / "ladder.rego"
    policy.write_text(LADDER)
    clauses = {
        "policy": {"file": str(policy), "deadline_ms": 2000, "rules": ["non_finite"]},
        "seeds": {"mode": "set"},
        "gradients": {"decay": 0.25, "decay_steps": 6},
    }
    ended = launch(
        SCRIPT,
        args=[host, strategy, str(NUM_STEPS), json.dumps(clauses)],
        env={**environment(launch, ""), "BAD_LOSSES": "[4, 24]"},
        timeout_s=120,
    )

    assert ended.succeeded(), ended
    one, other = told(ended.out[0]), told(ended.out[1])
    assert one["made"] == other["made"] and not {*one["noise"]} & {*other["noise"]}
    assert (one["stopped_at"], one["last_step"]) == (None, NUM_STEPS - 1)
    entries = ledger(launch)
    snapshot, restraint = (e for e in entries if e.kind == "decision")
    assert (snapshot.action, restraint.action) == ("snapshot", "clip_and_decay")
    (notice,) = (e for e in entries if "A snapshot of the state" in (e.message or ""))
    report = verify_path(Path(notice.evidence["path"]))
    assert report.problems == ()
    assert report.manifest is not None and not report.manifest.is_healthy
    lowered = range(restraint.step + 1, restraint.step + 7)
    rates = [0.01 * (0.25 if step in lowered else 1.0) for step in range(NUM_STEPS)]
    assert one["rates"] == other["rates"] == pytest.approx(rates)


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


@pytest.mark.parametrize(("host", "strategy"), [*FIRST, ("lightning", "fsdp2")])
def test_after_a_kill_training_goes_on_from_the_last_good_checkpoint(
    launch: Any, host: str, strategy: str
) -> None:
    """
    A rank that was killed is named, torchrun starts the job again, and it goes on after the
    newest checkpoint that is whole, since a bit of the newest has flipped meanwhile, up to its
    last step.
    """
    ended = launch.torchrun(
        SCRIPT,
        args=[host, strategy, str(NUM_STEPS)],
        env={**environment(launch, "kill:rank=1,step=12"), "DAMAGE": str(launch.folder)},
        max_restarts=1,
        timeout_s=180,
    )

    assert ended.succeeded(), ended
    said = told(ended.out[0])
    assert (said["starts_at"], said["last_step"]) == (5, NUM_STEPS - 1)
    entries = ledger(launch)
    breach = next(e for e in entries if e.kind == "breach")
    assert (breach.rule, breach.rank) == ("liveness", 1)
    (restored,) = (e for e in entries if e.kind == "restored")
    assert (restored.attempt, restored.step) == (1, 4)
    rejected = [e for e in entries if e.kind == "checkpoint_rejected" and e.attempt == 1]
    assert [e.step for e in rejected] == [9]


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
