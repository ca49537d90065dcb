"""The rules this version has, and the forms each of them comes in."""

from typing import Any

from slav1 import detectors
from slav1.contract.error import ContractError, did_you_mean

COMMON_KEYS = ("mode", "action", "rule")
"""Keys of every rule; all others are settings of its detector."""

LATER_RULES = frozenset(
    {
        "collective_failures",
        "link_stall",
        "recovery_time",
    }
)
"""Rules of the contract that have no detector of their own yet."""

_PREFERENCE = ("learned", "sequential", "literal")


def variants() -> dict[str, dict[str, type[Any]]]:
    """Returns the detector classes of this version by rule and by variant.

    They are the classes that ``slav1.detectors.__all__`` names; a new one there is
    a new rule, or a new form of a rule, without a change here.
    """
    found: dict[str, dict[str, type[Any]]] = {}
    for name in sorted(detectors.__all__):
        detector = getattr(detectors, name)
        if hasattr(detector, "RULE") and hasattr(detector, "VARIANT"):
            found.setdefault(detector.RULE, {})[detector.VARIANT] = detector
    return dict(sorted(found.items()))


def default_variant(forms: dict[str, type[Any]]) -> str:
    """Returns the form of a rule that is used unless another is asked for: the
    contract's literal rule only where there is no better one."""
    return next((name for name in _PREFERENCE if name in forms), min(forms))


def unknown_rule(name: str, value: object) -> ContractError:
    """Builds the error for a rule that this version does not have."""
    known = variants()
    here = f"This version has: {', '.join(known)}."
    if name in LATER_RULES:
        text = f"rules.{name} is a rule of the contract that is not in this version yet. {here}"
    else:
        text = f"rules.{name} is not a rule. {here}{did_you_mean(name, known)}"
    return ContractError(text, key=f"rules.{name}", value=value)
