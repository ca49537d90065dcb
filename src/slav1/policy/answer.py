"""What a policy's answer means for one breach."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slav1.breach import Breach, Fact, Status
from slav1.contract import Mode, Rule
from slav1.decision import Action
from slav1.policy.table import Verdict, available

TABLE = "table"
"""In place of an action: the table decides."""

_ACTIONS = {action.name.lower(): action for action in Action}
_SHORT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a policy said about one question."""

    value: Any = None
    """Value of the rule that was asked for; None if it is undefined."""

    problem: str | None = None
    """One sentence on why there is no value; None if nothing went wrong."""

    took_s: float | None = None
    """How long it took, in seconds, waiting for it included."""


def wanted(answer: Answer, grant: Action) -> tuple[Action | None, str | None]:
    """Reads an answer.

    Args:
        answer: What the policy said.
        grant: What true stands for.

    Returns:
        The action it asks for, None if the table is to decide; and what is wrong with
        the answer, None if nothing is.
    """
    value = answer.value
    if answer.problem is not None:
        return None, answer.problem
    if isinstance(value, Mapping):
        if "action" not in value:
            return None, f"It answered {_shown(value)}, which has no action."
        value = value["action"]
    if value is None or value is False or value == TABLE:
        return None, None
    if value is True:
        return grant, None
    if isinstance(value, str) and value in _ACTIONS:
        return _ACTIONS[value], None
    return None, (
        f"It answered {_shown(value)}; an answer is true, false, {TABLE} or one of "
        f"{', '.join(_ACTIONS)}."
    )


def grants(answer: Answer) -> bool:
    """Whether an answer, whatever it means, is more than "the table decides"."""
    value = answer.value
    if isinstance(value, Mapping):
        value = value.get("action")
    return not (value is None or value is False or value == TABLE)


def overruled(
    table: Verdict,
    answer: Answer,
    *,
    breach: Breach,
    rule: Rule,
    grant: Action,
    can_roll_back: bool,
) -> Verdict:
    """Puts a policy's answer in place of what the table says, as far as it may go.

    The action may be milder or harder than the table's. A rule that only observes goes
    on observing, and thin evidence stays thin: there the answer changes only what would
    have been done.

    Args:
        table: What the contract's table says.
        answer: What the policy says.
        breach: What it is about.
        rule: The rule it belongs to.
        grant: What true stands for.
        can_roll_back: Whether the run's host can go back to a checkpoint.

    Returns:
        The table's own verdict where the policy has nothing to say; with what the policy
        said in either case.
    """
    asked_for, problem = wanted(answer, grant)
    said: dict[str, Fact] = {"table": (table.would_have or table.action).name.lower()}
    if answer.took_s is not None:
        said["took_s"] = round(answer.took_s, 6)
    if problem is not None:
        return Verdict(**_same(table), policy={**said, "problem": problem})
    said["said"] = _fact(answer.value)
    if isinstance(answer.value, Mapping) and isinstance(answer.value.get("reason"), str):
        said["reason"] = answer.value["reason"][:_SHORT]
    if asked_for is None or breach.status is not Status.BREACH:
        return Verdict(**_same(table), policy=said)
    action = available(asked_for, can_roll_back=can_roll_back)
    if rule.mode is Mode.ENFORCE and breach.is_actionable:
        return Verdict(action=action, would_have=None, policy=said)
    would_have = None if action is Action.LOG else action
    return Verdict(action=Action.LOG, would_have=would_have, policy=said)


def _same(table: Verdict) -> dict[str, Any]:
    return {"action": table.action, "would_have": table.would_have}


def _fact(value: object) -> Fact:
    if isinstance(value, Mapping):
        return _fact(value.get("action"))
    return value if value is None or isinstance(value, bool) else str(value)[:_SHORT]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."
