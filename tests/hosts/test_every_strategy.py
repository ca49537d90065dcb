"""Every way to spread a model, in both hosts, each with something that goes wrong.

What needs a GPU runs in ``tests/gpu/test_families.py``. ``docs/parity.md`` refers to these.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slav1.checkpoint.verify import verify_path
from slav1.ledger import Entry
from slav1.recorder.ring import read_ring_file
from slav1.sample import Sample

from ._families import needs_deepspeed, needs_transformers
from ._runs import entries, run_folders, told

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.thorough]

EVERY_STRATEGY = Path(__file__).parent / "_scripts" / "every_strategy.py"
NUM_STEPS, NAN_STEP = 40, 12
HOSTS = {
    "accelerate": ("ddp", "fsdp2", "fsdp2+clip", "zero1", "zero2", "zero2-bf16", "zero3"),
    "lightning": ("ddp", "fsdp2", "fsdp_sharded", "deepspeed_1", "deepspeed_2", "deepspeed_3"),
    "transformers": ("ddp", "fsdp2", "zero2", "zero3"),
}
# What else goes wrong; under DDP two of the hosts have tests of their own for it.
FEWER = {
    "accelerate": ("fsdp2", "zero3"),
    "lightning": ("fsdp2", "fsdp_sharded", "deepspeed_3"),
    "transformers": ("ddp", "fsdp2", "zero3"),
}


def spread(hosts: dict[str, tuple[str, ...]], *rules: str) -> list[Any]:
    """All hosts with their strategies, and with all rules that can be read there."""
    return [
        pytest.param(
            *([rule] if rule else []),
            host,
            one,
            marks=[
                *([needs_deepspeed] if is_zero(one) else []),
                *([needs_transformers] if host == "transformers" else []),
            ],
        )
        for rule in rules or ("",)
        for host, strategies in hosts.items()
        for one in strategies
        if is_read(rule, host, one)
    ]


def is_zero(strategy: str) -> bool:
    return strategy.startswith(("zero", "deepspeed"))


def is_read(rule: str, host: str, strategy: str) -> bool:
    """Whether there is what a rule reads: ``docs/parity.md`` says why there may not be."""
    if rule == "straggler":
        return "fsdp" not in strategy and "3" not in strategy
    if rule in ("sync_latency", "sync_outlier"):
        return strategy == "ddp" or (host == "lightning" and strategy != "fsdp_sharded")
    if rule == "replica_divergence":
        return "fsdp" not in strategy and "3" not in strategy
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What a run with a NaN on rank 1 left behind."""

    ends: list[dict[str, Any]]
    ledger: list[Entry]
    samples: list[list[Sample]]


_STORIES: dict[tuple[str, str], Story] = {}


def story(ranks: Any, host: str, strategy: str) -> Story:
    """The run of one host and strategy, which several tests look at."""
    key = (host, strategy)
    if key not in _STORIES:
        fault = f"nan:rank=1,step={NAN_STEP}"
        ended = _run(ranks, host, strategy, fault)
        assert ended.succeeded(), ended
        (folder,) = run_folders(ranks.run_dir)
        _STORIES[key] = Story(
            ends=[told(ended.out[rank], "ended") for rank in (0, 1)],
            ledger=entries(ranks.run_dir),
            samples=[[*read_ring_file(folder / f"ring-{rank}.bin")] for rank in (0, 1)],
        )
    return _STORIES[key]


def _run(
    ranks: Any,
    host: str,
    strategy: str,
    fault: str,
    env: dict[str, str] | None = None,
    **clauses: Any,
) -> Any:
    env = {"DS_ACCELERATOR": "cpu", "SLA_INJECT": fault, **(env or {})}
    words = (host, strategy, NUM_STEPS, json.dumps(clauses))
    return ranks("every_strategy.py", *words, env=env)


@pytest.mark.parametrize(("host", "strategy"), spread(HOSTS))
def test_a_nan_on_one_rank_is_recovered_from(ranks: Any, host: str, strategy: str) -> None:
    """
    After a NaN on one rank the update is left out on both where all know that it is bad, else
    both go back to the last good checkpoint; the run comes to its end with weights that are
    finite and, put together, the same on both ranks.
    """
    seen = story(ranks, host, strategy)

    one, other = seen.ends
    assert one["weights"]["is_finite"] and other["weights"]["is_finite"]
    # On processors nobody can put the parts of the first generation of FSDP together.
    assert one["weights"] == other["weights"] or strategy == "fsdp_sharded"
    assert one["stopped_at"] is None and one["last_step"] >= NUM_STEPS - 8
    if "sharding" in one:
        wanted = "DEEPSPEED" if is_zero(strategy) else "FSDP" if "fsdp" in strategy else "MULTI_CPU"
        assert one["sharding"] == f"DistributedType.{wanted}"
    breach = next(e for e in seen.ledger if e.kind == "breach" and e.rank == 1)
    assert (breach.rule, breach.step) == ("non_finite", NAN_STEP)
    restored = [e.step for e in seen.ledger if e.kind == "restored"]
    # A transformers Trainer always has the norm of all gradients computed.
    has_norm = strategy in ("ddp", "fsdp2+clip") or host == "transformers"
    leaves_out = has_norm or is_zero(strategy)
    assert restored == ([] if leaves_out else [9])
    if leaves_out:
        assert "the weights are as before" in breach.message
        assert (breach.action, one["last_step"]) == ("skip_batches", NUM_STEPS - 1)


RULES = (
    *("ckpt_success", "loss_variance", "memory_drift", "replica_divergence", "seed_contract"),
    *("straggler", "sync_latency", "sync_outlier", "update_skew"),
)


@pytest.mark.parametrize(("rule", "host", "strategy"), spread(HOSTS, *RULES))
def test_what_a_rule_reads_is_there(ranks: Any, rule: str, host: str, strategy: str) -> None:
    """
    In the same run each rule that judges numbers has got them, from both ranks, in all steps
    but the first ones; the verdict says from how many.
    """
    seen = story(ranks, host, strategy)

    num_committed = sum(1 for e in seen.ledger if e.kind == "checkpoint_committed")
    # This one is off unless a contract asks for it, so no verdict speaks of it.
    if rule != "sync_outlier":
        (verdict,) = (e for e in seen.ledger if e.kind == "verdict" and e.rule == rule)
        least = {"ckpt_success": num_committed, "seed_contract": 1, "replica_divergence": 7}
        assert verdict.evidence["num_samples"] >= least.get(rule, NUM_STEPS)
        assert num_committed >= 7
    field = {
        "loss_variance": "loss",
        "straggler": "self_time_s",
        "sync_latency": "sync_s",
        "sync_outlier": "sync_s",
    }.get(rule)
    for samples in seen.samples if field else ():
        late = [sample for sample in samples if sample.step >= 3]
        assert len(late) >= NUM_STEPS - 8
        assert all(getattr(sample, field) is not None for sample in late)


@pytest.mark.parametrize(("host", "strategy"), spread(FEWER))
def test_a_stop_ends_all_ranks_at_one_step(ranks: Any, host: str, strategy: str) -> None:
    """
    Where the contract stops training for a NaN, both ranks end it at the end of the same step,
    in good order.
    """
    stops = {"mode": "enforce", "action": "stop"}
    ended = _run(ranks, host, strategy, f"nan:rank=1,step={NAN_STEP}", non_finite=stops)

    assert ended.succeeded(), ended
    (stopped_at,) = {told(ended.out[rank], "ended")["stopped_at"] for rank in (0, 1)}
    assert NAN_STEP <= stopped_at < NUM_STEPS - 1
    carried_out = [e for e in entries(ranks.run_dir, "action") if e.rank is None]
    assert [(e.action, e.step) for e in carried_out] == [("stop", stopped_at)]


FIRST_BAD, SECOND_BAD, DECAY_STEPS = 4, 24, 6
LADDER = f"""package slav1.decision
action := "snapshot" if input.breach.step < {SECOND_BAD}
action := "clip_and_decay" if input.breach.step >= {SECOND_BAD}
"""


@pytest.mark.parametrize(("host", "strategy"), spread(FEWER))
def test_two_bad_losses_lead_to_milder_actions(
    ranks: Any, tmp_path: Path, host: str, strategy: str
) -> None:
    """
    With seeds set ranks begin with equal weights and draw numbers of their own; a loss that is
    no number leads to a snapshot that verifies and that nobody resumes from, another one to
    lower learning rates in the same updates of both ranks, and training goes on to its end.
    """
    policy = tmp_path / "ladder.rego"
    policy.write_text(LADDER)
    clauses = {
        "policy": {"file": str(policy), "deadline_ms": 2000, "rules": ["non_finite"]},
        "seeds": {"mode": "set"},
        "gradients": {"norm_every": 1, "decay": 0.25, "decay_steps": DECAY_STEPS},
    }
    bad = {"BAD_LOSSES": json.dumps([FIRST_BAD, SECOND_BAD])}
    ended = _run(ranks, host, strategy, "", env=bad, **clauses)

    assert ended.succeeded(), ended
    one, other = (told(ended.out[rank], "ended") for rank in (0, 1))
    assert one["made"] == other["made"]
    assert not {*one["noise"]} & {*other["noise"]}
    assert one["stopped_at"] is None and one["last_step"] == NUM_STEPS - 1
    ledger = entries(ranks.run_dir)
    assert not [e for e in ledger if e.kind == "restored"]
    assert {e.rule for e in ledger if e.kind == "breach"} == {"non_finite"}
    snapshot, restraint = (e for e in ledger if e.kind == "decision")
    assert (snapshot.action, restraint.action) == ("snapshot", "clip_and_decay")
    _is_snapshot(ledger)
    # Where ranks hold parts of a gradient nobody is asked for its norm in each step.
    said = " ".join(e.message or "" for e in ledger if e.kind == "notice")
    assert ("nothing is clipped" in said) is (strategy != "ddp")
    first = restraint.step + 1
    lowered = range(first, first + DECAY_STEPS)
    rates = [0.01 * (0.25 if step in lowered else 1.0) for step in range(NUM_STEPS)]
    assert one["rates"] == other["rates"] == pytest.approx(rates)


def _is_snapshot(ledger: list[Entry]) -> None:
    """It is whole, and says itself that nobody must go on from it."""
    (notice,) = (e for e in ledger if "A snapshot of the state" in (e.message or ""))
    report = verify_path(Path(notice.evidence["path"]))
    assert report.problems == ()
    assert report.manifest is not None and not report.manifest.is_healthy


@pytest.mark.parametrize(("host", "strategy"), spread(FEWER))
def test_a_hang_on_one_rank_is_named(ranks: Any, host: str, strategy: str) -> None:
    """
    A rank that hangs while the other waits for it is named, and every process ends non-zero.
    """
    ended = _run(ranks, host, strategy, f"hang:rank=1,step={NAN_STEP}")

    assert 0 not in ended.exit_codes.values(), ended
    breach = next(e for e in entries(ranks.run_dir, "breach") if e.rule == "hang")
    assert (breach.rank, breach.step, breach.phase) == (1, NAN_STEP, "forward")


# One sharded strategy of each host is started again by torchrun, which takes three times as long.
BY_TORCHRUN = {("accelerate", "zero3"), ("lightning", "fsdp2"), ("transformers", "fsdp2")}


@pytest.mark.parametrize(("host", "strategy"), spread(FEWER))
def test_after_a_kill_training_goes_on_from_the_last_good_checkpoint(
    launch: Any, ranks: Any, host: str, strategy: str
) -> None:
    """
    A rank that was killed is named, the job is started again, by torchrun or as torchrun does it,
    and it goes on after the newest checkpoint that is whole, since a bit of the newest has flipped
    meanwhile, up to its last step, with weights that are finite.
    """
    starts_again = _by_torchrun if (host, strategy) in BY_TORCHRUN else _by_hand
    ended = starts_again(launch, ranks, host, strategy)

    assert ended.succeeded(), ended
    said = told(ended.out[0], "ended")
    assert (said["starts_at"], said["last_step"]) == (5, NUM_STEPS - 1)
    assert said["weights"]["is_finite"]
    ledger = entries(launch.folder / "runs")
    breach = next(e for e in ledger if e.kind == "breach")
    assert (breach.rule, breach.rank) == ("liveness", 1)
    (restored,) = (e for e in ledger if e.kind == "restored")
    assert (restored.attempt, restored.step) == (1, 4)
    rejected = [e for e in ledger if e.kind == "checkpoint_rejected" and e.attempt == 1]
    assert [e.step for e in rejected] == [9]


def _after_kill(launch: Any, strategy: str) -> dict[str, str]:
    """Environment of both starts."""
    return {
        "DS_ACCELERATOR": "cpu",
        "SLA_INJECT": f"kill:rank=1,step={NAN_STEP}",
        "SLA_RUN_DIR": str(launch.folder / "runs"),
        "DAMAGE": str(launch.folder),
        **({} if is_zero(strategy) else {"ACCELERATE_USE_CPU": "true"}),
    }


def _by_torchrun(launch: Any, ranks: Any, host: str, strategy: str) -> Any:
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **_after_kill(launch, strategy)}
    words = [host, strategy, str(NUM_STEPS)]
    return launch.torchrun(EVERY_STRATEGY, args=words, max_restarts=1, env=env, timeout_s=280)


def _by_hand(launch: Any, ranks: Any, host: str, strategy: str) -> Any:
    """Two starts of ranks that are there at once, with what torchrun tells them."""
    for number in ("0", "1"):
        env = {
            **_after_kill(launch, strategy),
            "TORCHELASTIC_RUN_ID": "job",
            "TORCHELASTIC_RESTART_COUNT": number,
            "TORCHELASTIC_MAX_RESTARTS": "1",
        }
        ended = ranks("every_strategy.py", host, strategy, NUM_STEPS, env=env)
        assert ended.succeeded() is (number == "1"), ended
    return ended


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
