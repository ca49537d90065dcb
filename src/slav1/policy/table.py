"""Breach to action through the contract's table."""

from dataclasses import dataclass

from slav1.breach import Breach, Status
from slav1.contract import Mode, Rule
from slav1.decision import Action

# What this version can carry out. The rest is declared in the contract already and
# stands for the nearest thing that protects the run, or for a line in the ledger.
_STANDS_FOR = {Action.ROLLBACK: Action.STOP}
_CARRIED_OUT = frozenset({Action.LOG, Action.STOP, Action.RESTART})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the table says about one breach."""

    action: Action
    """What is done."""

    would_have: Action | None
    """What would have been done if the rule were enforced and the evidence enough."""


def judge(breach: Breach, rule: Rule) -> Verdict:
    """Looks a breach up in the contract.

    Args:
        breach: What a detector found.
        rule: The rule it belongs to.

    Returns:
        The action; LOG unless the rule is enforced and the evidence suffices.
    """
    wanted = available(rule.action)
    if breach.status is not Status.BREACH or wanted is Action.LOG:
        return Verdict(action=Action.LOG, would_have=None)
    if rule.mode is Mode.ENFORCE and breach.is_actionable:
        return Verdict(action=wanted, would_have=None)
    return Verdict(action=Action.LOG, would_have=wanted)


def available(action: Action) -> Action:
    """The action of this version that stands for ``action``."""
    action = _STANDS_FOR.get(action, action)
    return action if action in _CARRIED_OUT else Action.LOG
