"""What a detector says: a limit was crossed, or is kept again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from slav1.phase import Phase

Fact: TypeAlias = bool | int | float | str | list["Fact"] | dict[str, "Fact"] | None
"""Anything a ledger line can hold."""


class Status(Enum):
    """How a breach relates to the incident it belongs to."""

    NOTICE = "notice"
    """Worth a line in the ledger; never leads to an action and opens nothing."""

    BREACH = "breach"
    """A limit was crossed. Opens an incident, or strengthens the open one."""

    RECOVERED = "recovered"
    """The limit is kept again. Closes the incident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """One finding of one detector."""

    rule: str
    """Name of the rule in the contract."""

    status: Status = Status.BREACH
    """Notice, breach or recovery."""

    is_actionable: bool = True
    """Whether the evidence is strong enough for the rule's action; otherwise it is
    only logged."""

    rank: int | None
    """Global rank at fault; None if no single rank is."""

    step: int | None
    """Step the finding is about."""

    phase: Phase | None = None
    """Phase the finding is about, if it is about one."""

    statistic: float | None
    """What was measured, in ``unit``."""

    limit: float | None
    """What it must not cross, in ``unit``."""

    unit: str
    """Unit of ``statistic`` and ``limit``."""

    arl0: float | None = None
    """Mean number of healthy samples between two false alarms of this kind; None for
    a plain fact."""

    action: str | None = None
    """What this finding asks for instead of the rule's own action, by the name of an
    ``Action``; None for the rule's own. A rule whose action is ``log`` logs all the same."""

    message: str
    """One sentence for people: what, where, how much."""

    evidence: Mapping[str, Fact] = field(default_factory=dict)
    """Whatever else helps to judge the finding."""
