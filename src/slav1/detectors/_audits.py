"""Looks at the ranks' random numbers, as ledger lines tell of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from slav1.sample import Audit, Stream

RULE = "seed_contract"
"""Name of the rule."""


def audit_in(
    rule: str | None, step: int | None, evidence: Mapping[str, Any], *, time_s: float
) -> Audit | None:
    """The audit that a ledger line of a rank tells of.

    Args:
        rule: Rule of the line.
        step: Its step.
        evidence: Its evidence.
        time_s: When it came, in seconds.

    Returns:
        None for a line about something else.
    """
    moment = evidence.get("audit")
    if rule != RULE or not isinstance(moment, str):
        return None
    return Audit(
        step=step,
        time_s=time_s,
        moment=moment,
        wrong=tuple(str(each) for each in _list(evidence.get("wrong"))),
        at_fault=tuple(one for one in _list(evidence.get("at_fault")) if isinstance(one, int)),
        streams=tuple(_streams(evidence)),
        is_owed=evidence.get("is_set") is True,
    )


def _streams(evidence: Mapping[str, Any]) -> list[Stream]:
    owner, found = evidence.get("owner"), []
    for told in _list(evidence.get("workers")):
        if not isinstance(told, dict) or not isinstance(told.get("digests"), dict):
            continue
        where = (owner, told.get("loader"), told.get("worker"), told.get("epoch"))
        if all(isinstance(number, int) for number in where):
            found += [Stream(str(name), str(d), *where) for name, d in told["digests"].items()]  # type: ignore[arg-type]
    return found


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
