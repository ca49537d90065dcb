"""One clause of a contract: what is watched, and what follows."""

from dataclasses import dataclass
from enum import Enum

from slav1.decision import Action
from slav1.detectors._detector import Detector


class Mode(Enum):
    """How seriously a rule is taken."""

    OBSERVE = "observe"
    """Breaches are written down, with the action that would have been taken."""

    ENFORCE = "enforce"
    """Breaches lead to the rule's action."""

    OFF = "off"
    """The rule is not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One clause of a contract."""

    name: str
    """Name of the rule, for example ``loss_variance``."""

    mode: Mode
    """How seriously it is taken."""

    action: Action
    """What a breach asks for."""

    detector: Detector
    """What finds the breaches, with its settings."""
