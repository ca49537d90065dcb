"""What a policy is told about one breach: the input document, plain values only."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slav1.breach import Breach
from slav1.contract import Rule
from slav1.policy.table import Verdict

MAX_DOCUMENT_BYTES = 60_000
"""Largest input document; one that is larger goes without its evidence."""

_MAX_TEXT = 1000
_MAX_LIST = 64
_MAX_INT = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known about the job beside the breach itself.

    Raises:
        TypeError: If a metric or a count is no finite number: in Rego a text is greater
            than any number, so a wrong type would fulfil a limit.
    """

    metadata: Mapping[str, str | int | bool] = field(default_factory=dict)
    """What the job is: ``job_type``, ``level``, ``world_size`` and so on."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """What was measured last; without what was not measured."""

    history: Mapping[str, int] = field(default_factory=dict)
    """What has happened so far, as counts."""

    def __post_init__(self) -> None:
        for name, value in (*self.metrics.items(), *self.history.items()):
            if not _is_finite(value):
                raise TypeError(f"{name} must be a finite number for a policy, got {value!r}.")


def question(breach: Breach, rule: Rule, table: Verdict, known: Circumstances) -> dict[str, Any]:
    """Puts the input document together.

    Args:
        breach: What was found.
        rule: The rule it belongs to.
        table: What the contract's table says about it.
        known: What else is known.

    Returns:
        The mappings ``metrics, breach, rule, table, metadata, history``. A value that is
        not known or not finite is left out: what a policy compares it with is undefined
        then, and never fulfilled.
    """
    document = {
        "metrics": dict(known.metrics),
        "breach": _about(breach),
        "rule": {
            "name": rule.name,
            "mode": rule.mode.value,
            "action": rule.action.name.lower(),
            "variant": rule.detector.VARIANT,
        },
        "table": {
            "action": table.action.name.lower(),
            **({} if table.would_have is None else {"would_have": table.would_have.name.lower()}),
        },
        "metadata": dict(known.metadata),
        "history": dict(known.history),
    }
    if len(json.dumps(document)) > MAX_DOCUMENT_BYTES:
        document["breach"]["evidence"] = {}
    return document


def _about(breach: Breach) -> dict[str, Any]:
    facts = {
        "rule": breach.rule,
        "rank": breach.rank,
        "step": breach.step,
        "phase": None if breach.phase is None else breach.phase.name.lower(),
        "statistic": breach.statistic,
        "limit": breach.limit,
        "arl0": breach.arl0,
        "unit": breach.unit,
        "is_actionable": breach.is_actionable,
        "message": breach.message,
    }
    known = {name: _plain(value) for name, value in facts.items()}
    evidence = {str(name)[:_MAX_TEXT]: _plain(value) for name, value in breach.evidence.items()}
    return {
        **{name: value for name, value in known.items() if value is not None},
        "evidence": {name: value for name, value in evidence.items() if value is not None},
    }


def _plain(value: object) -> Any:
    """A value as the document holds it; None for what it leaves out."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if _is_finite(value) else None
    if isinstance(value, str):
        # Half a surrogate pair, as in a file's name, is nothing that JSON may hold.
        return value[:_MAX_TEXT].encode(errors="replace").decode()
    if isinstance(value, list) and all(_is_finite(part) for part in value[:_MAX_LIST]):
        return value[:_MAX_LIST]
    return None


def _is_finite(value: object) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) <= _MAX_INT
    return isinstance(value, float) and math.isfinite(value)
