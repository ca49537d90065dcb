"""The three levels, and what a contract says about a rule unless told otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slav1.contract.rule import Mode
from slav1.decision import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What one level of the contract promises."""

    purpose: str
    """For which runs it is meant."""

    recovery_within_s: float
    """Longest time from a fault to the first step past the one it hit, in seconds."""

    settings: Mapping[str, Mapping[str, Any]]
    """Settings of rules that differ from their detector's own, by rule."""


# A hang is found, given its grace time and ended, and there must be time left to start
# again: so a hard limit takes no more than a third of the time to recover.
LEVELS = {
    "L1": Level(
        purpose="fine-tuning on several GPUs of one machine",
        recovery_within_s=30.0,
        settings={"hang": {"limit_s": 10.0}, "stall": {"job_type": "distributed_finetune"}},
    ),
    "L2": Level(
        purpose="training on several machines",
        recovery_within_s=90.0,
        settings={"hang": {"limit_s": 30.0}, "stall": {"job_type": "distributed_training"}},
    ),
    "L3": Level(
        purpose="pre-training on thousands of GPUs",
        recovery_within_s=180.0,
        settings={"hang": {"limit_s": 60.0}, "stall": {"job_type": "distributed_pretrain"}},
    ),
}

DEFAULT_MODES = {
    "ckpt_success": Mode.ENFORCE,
    "hang": Mode.ENFORCE,
    "liveness": Mode.ENFORCE,
    "non_finite": Mode.ENFORCE,
    "replica_divergence": Mode.ENFORCE,
    "sync_outlier": Mode.OFF,
    "update_skew": Mode.ENFORCE,
}
"""Facts are enforced; the literal outlier rule blames the wrong rank and is off. All
other rules are statistical and only observe."""

DEFAULT_ACTIONS = {
    "ckpt_success": Action.THROTTLE_IO,
    "hang": Action.STOP,
    "liveness": Action.STOP,
    "non_finite": Action.ROLLBACK,
    "loss_variance": Action.ROLLBACK,
    "replica_divergence": Action.ROLLBACK,
    "memory_drift": Action.STOP,
    "stall": Action.RESTART,
    "update_skew": Action.ROLLBACK,
}
"""All other rules log. Where a host can't go back, a rollback stands for a stop."""


def default_mode(rule: str) -> Mode:
    """Returns how seriously ``rule`` is taken unless the contract says otherwise."""
    return DEFAULT_MODES.get(rule, Mode.OBSERVE)


def default_action(rule: str) -> Action:
    """Returns what a breach of ``rule`` asks for unless the contract says otherwise."""
    return DEFAULT_ACTIONS.get(rule, Action.LOG)
