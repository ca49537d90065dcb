"""Losses and gradients that are NaN or infinite."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Fact, Status
from slav1.sample import Sample

# What makes the loss itself, or the weights, worthless; the rest may still be skipped
# by a gradient scaler, which meets infinite gradients in a healthy run.
_LOSES_THE_STEP = frozenset({"loss", "parameters"})
_WARNED, _LOST = 1, 2


class NonFiniteState(NamedTuple):
    """Severity of the open incident, and finite steps since it was last fed."""

    severity: int = 0
    """0 none, 1 only a gradient or an input, 2 a loss or the parameters."""
    num_finite: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """Finds steps whose loss or gradient is not a finite number.

    No statistics: such a loss is a fact. A gradient that is not finite beside a loss
    that is gives a breach that is only logged, because mixed precision meets and skips
    such steps; if it does reach the weights, the next loss says so.

    Raises:
        ValueError: If a setting is out of range.
    """

    RULE: ClassVar[str] = "non_finite"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

    recovery_steps: int = 5
    """Finite steps in a row that close an incident, in steps."""

    def __post_init__(self) -> None:
        if self.recovery_steps < 1:
            raise ValueError(f"recovery_steps must be at least 1, got {self.recovery_steps}.")

    def start(self) -> NonFiniteState:
        return NonFiniteState()

    def observe(self, state: NonFiniteState, event: Sample) -> tuple[NonFiniteState, Breach | None]:
        bad = _non_finite(event)
        if not bad:
            return self._after_finite(state, event)
        severity = _LOST if _LOSES_THE_STEP & set(bad) else _WARNED
        after = NonFiniteState(severity=max(severity, state.severity))
        if severity <= state.severity:
            return after, None
        return after, _breach(event, bad, is_actionable=severity == _LOST)

    def _after_finite(
        self, state: NonFiniteState, event: Sample
    ) -> tuple[NonFiniteState, Breach | None]:
        is_known = event.loss is not None or event.grad_norm is not None
        if not state.severity or not is_known:
            return state, None
        num_finite = state.num_finite + 1
        if num_finite < self.recovery_steps:
            return state._replace(num_finite=num_finite), None
        return NonFiniteState(), Breach(
            rule=self.RULE,
            status=Status.RECOVERED,
            is_actionable=False,
            rank=event.rank,
            step=event.step,
            statistic=float(num_finite),
            limit=float(self.recovery_steps),
            unit="finite steps",
            message=f"Rank {event.rank} has had finite numbers for {num_finite} steps.",
        )


def _non_finite(sample: Sample) -> tuple[str, ...]:
    """What was not finite, in the order in which it is computed."""
    bad = list(sample.non_finite)
    if "loss" not in bad and sample.loss is not None and not math.isfinite(sample.loss):
        place = bad.index("gradient") if "gradient" in bad else len(bad)
        bad.insert(place, "loss")
    norm = sample.grad_norm
    if "gradient" not in bad and norm is not None and not math.isfinite(norm):
        bad.append("gradient")
    return tuple(bad)


def _breach(sample: Sample, bad: tuple[str, ...], *, is_actionable: bool) -> Breach:
    batch = "" if sample.batch is None else f" (batch {sample.batch})"
    verb = "were" if bad[0] == "parameters" else "was"
    evidence: dict[str, Fact] = {"first": bad[0], "non_finite": list(bad), "batch": sample.batch}
    return Breach(
        rule=NonFinite.RULE,
        is_actionable=is_actionable,
        rank=sample.rank,
        step=sample.step,
        statistic=sample.loss if "loss" in bad else sample.grad_norm,
        limit=None,
        unit="loss" if "loss" in bad else "gradient norm",
        message=(
            f"On rank {sample.rank} the {bad[0]} {verb} not finite in step {sample.step}{batch}; "
            f"not finite, in the order of computing: {', '.join(bad)}."
        ),
        evidence=evidence,
    )
