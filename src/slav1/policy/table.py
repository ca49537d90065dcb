"""Breach to action through the contract's table."""

from collections.abc import Mapping
from dataclasses import dataclass

from slav1.breach import Breach, Fact, Status
from slav1.contract import Mode, Rule
from slav1.decision import Action

# What this version can carry out. The rest is declared in the contract already and
# stands for a line in the ledger.
_CARRIED_OUT = frozenset(set(Action) - {Action.ISOLATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is done about one breach."""

    action: Action
    """What is done."""

    would_have: Action | None
    """What would have been done if the rule were enforced and the evidence enough."""

    policy: Mapping[str, Fact] | None = None
    """What a policy said about it, for the ledger; None if none was asked."""


def judge(breach: Breach, rule: Rule, *, can_roll_back: bool = True) -> Verdict:
    """Looks a breach up in the contract.

    Args:
        breach: What a detector found.
        rule: The rule it belongs to.
        can_roll_back: Whether the run's host can go back to a checkpoint.

    Returns:
        The action; LOG unless the rule is enforced and the evidence suffices.
    """
    wanted = available(_asked_for(breach, rule), can_roll_back=can_roll_back)
    if breach.status is not Status.BREACH or wanted is Action.LOG:
        return Verdict(action=Action.LOG, would_have=None)
    if rule.mode is Mode.ENFORCE and breach.is_actionable:
        return Verdict(action=wanted, would_have=None)
    return Verdict(action=Action.LOG, would_have=wanted)


def _asked_for(breach: Breach, rule: Rule) -> Action:
    """A finding may ask for another action than its rule does, but only where that acts; and
    batches are skipped only where that stands for a rollback that is not needed."""
    if breach.action is None or rule.action is Action.LOG:
        return rule.action
    asked = Action[breach.action.upper()]
    if asked is Action.SKIP_BATCHES and rule.action is not Action.ROLLBACK:
        return rule.action
    return asked


def available(action: Action, *, can_roll_back: bool = True) -> Action:
    """The action of this version that stands for ``action``.

    Args:
        action: What the contract says.
        can_roll_back: Whether the run's host can go back to a checkpoint; a rollback
            stands for a stop where it can't.
    """
    if action is Action.ROLLBACK and not can_roll_back:
        return Action.STOP
    return action if action in _CARRIED_OUT else Action.LOG
