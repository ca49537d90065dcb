"""The time-out ladder: every limit of a contract in the order in which they act."""

import dataclasses
from dataclasses import dataclass

from slav1.contract.contract import Contract
from slav1.contract.rule import Mode
from slav1.decision import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One limit of the ladder."""

    key: str
    """Path of the setting in the contract."""

    limit_s: float
    """The limit, in seconds."""

    ended_after_s: float | None = None
    """Seconds after which the processes are gone when this limit is the one that is
    passed; None for a limit that ends nothing."""

    is_within_recovery: bool | None = None
    """Whether that leaves time to recover within the level's promise; None for a limit
    that ends nothing."""


def ladder(contract: Contract) -> list[Rung]:
    """Lists the limits of a contract.

    Args:
        contract: The contract.

    Returns:
        From the time between two looks over the limits of liveness and of each phase
        to the grace time and, last, the recovery that the level promises.
    """
    return [
        Rung(key="monitor.tick_s", limit_s=contract.monitor.tick_s),
        *(_rung(contract, rule, setting) for rule, setting in _limits(contract)),
        Rung(key="monitor.grace_s", limit_s=contract.monitor.grace_s),
        Rung(key="recovery_within_s", limit_s=contract.recovery_within_s),
    ]


def _limits(contract: Contract) -> list[tuple[str, str]]:
    found = []
    for name in ("liveness", "hang"):
        rule = contract.rules.get(name)
        if rule is None or rule.mode is Mode.OFF:
            continue
        names = [field.name for field in dataclasses.fields(rule.detector)]  # type: ignore[arg-type]
        limits = [setting for setting in names if setting.endswith("limit_s")]
        found += [(name, setting) for setting in sorted(limits, key=_is_hard)]
    return found


def _is_hard(setting: str) -> bool:
    """Whether it ends something; the bounds of a learned limit only bound a warning."""
    return not setting.startswith(("min_", "max_"))


def _rung(contract: Contract, rule: str, setting: str) -> Rung:
    clause = contract.rules[rule]
    key, limit_s = f"rules.{rule}.{setting}", getattr(clause.detector, setting)
    if not _is_hard(setting) or clause.mode is not Mode.ENFORCE or clause.action < Action.STOP:
        return Rung(key=key, limit_s=limit_s)
    ended_after_s = contract.monitor.tick_s + limit_s + contract.monitor.grace_s
    policy = contract.policy
    if policy is not None and (not policy.rules or rule in policy.rules):
        ended_after_s += policy.deadline_s
    return Rung(
        key=key,
        limit_s=limit_s,
        ended_after_s=ended_after_s,
        is_within_recovery=ended_after_s < contract.recovery_within_s,
    )
