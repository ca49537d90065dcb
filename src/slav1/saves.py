"""Saves as a ledger tells of them, and what their number says about the contract."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slav1.breach import Fact
from slav1.detectors._bounds import chance_at_least, clopper_pearson
from slav1.ledger import Entry
from slav1.sample import Save

CONFIDENCE = 0.95
"""Confidence of each bound, and the chance from which the target counts as kept."""

BREACH_CONFIDENCE = 0.99
"""Chance from which the target counts as missed."""


def save_in(
    kind: str, step: int | None, evidence: Mapping[str, Any], *, time_s: float
) -> Save | None:
    """The save that a ledger line tells of.

    Args:
        kind: Kind of the line.
        step: Its step.
        evidence: Its evidence.
        time_s: When it came, in seconds.

    Returns:
        None for a line about something else, a checkpoint that was only passed over
        included: no write of it failed.
    """
    if kind == "checkpoint_committed":
        return Save(step=step, time_s=time_s, succeeded=True)
    is_corrupt = evidence.get("is_corrupt") is True
    if kind != "checkpoint_rejected" or not (is_corrupt or "num_failed_in_row" in evidence):
        return None
    return Save(
        step=step,
        time_s=time_s,
        succeeded=False,
        is_corrupt=is_corrupt,
        reason=str(evidence.get("reason", "")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRate:
    """What the saves of a run say about their rate of success."""

    num_saves: int
    """How many there were."""

    num_failed: int
    """How many of them failed."""

    target_ratio: float
    """Share that the contract asks for."""

    @classmethod
    def of(cls, entries: Iterable[Entry], target_ratio: float) -> "SaveRate":
        """Counts the saves in a ledger, all attempts together."""
        lines = (save_in(e.kind, e.step, e.evidence, time_s=e.time_ns * 1e-9) for e in entries)
        saves = [save for save in lines if save is not None]
        num_failed = sum(not save.succeeded for save in saves)
        return cls(num_saves=len(saves), num_failed=num_failed, target_ratio=target_ratio)

    @property
    def chance_kept(self) -> float:
        """Chance that the true rate is at least the target."""
        num_good = self.num_saves - self.num_failed
        return chance_at_least(self.target_ratio, num_good, self.num_saves)

    @property
    def is_kept(self) -> bool:
        """Whether the target is kept with enough confidence to say so."""
        return self.chance_kept > CONFIDENCE

    @property
    def is_missed(self) -> bool:
        """Whether it is missed with enough confidence to say so."""
        return 1.0 - self.chance_kept > BREACH_CONFIDENCE

    @property
    def message(self) -> str:
        """One sentence for people, with the bounds."""
        lower, upper = self._bounds()
        return (
            f"{self.num_failed} of {self.num_saves} saves failed: the rate of success is at least "
            f"{lower:.2%} and at most {upper:.2%}, each with {CONFIDENCE:.0%} confidence; "
            f"{self.target_ratio:.2%} are asked for."
        )

    def to_facts(self) -> dict[str, Fact]:
        """The numbers, for a ledger line."""
        lower, upper = self._bounds()
        return {
            "num_saves": self.num_saves,
            "num_failed": self.num_failed,
            "target_ratio": self.target_ratio,
            "lower_bound": lower,
            "upper_bound": upper,
            "confidence": CONFIDENCE,
            "chance_kept": self.chance_kept,
        }

    def _bounds(self) -> tuple[float, float]:
        num_good = self.num_saves - self.num_failed
        return clopper_pearson(num_good, self.num_saves, confidence=CONFIDENCE)
