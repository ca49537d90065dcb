"""Losses and gradients that are NaN or infinite."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Fact, Status
from slav1.sample import Sample

# What makes the loss itself, or the weights, worthless; the rest may still be skipped
# by a gradient scaler, which meets infinite gradients in a healthy run.
_LOSES_THE_STEP = frozenset({"loss", "parameters"})
_TOLD, _WARNED, _LEFT_OUT, _LOST = 1, 2, 3, 4
# What is to be done where the update was left out, so that there is nothing to take back.
_SKIP = "skip_batches"


class NonFiniteState(NamedTuple):
    """Severity of the open incident, finite steps since it was last fed, and updates that
    were left out in a row."""

    severity: int = 0
    """0 none, 1 only a gradient whose update was left out, 2 only a gradient or an input, 3 a
    loss whose update was left out, 4 a loss or the parameters."""
    num_finite: int = 0
    num_left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """Finds steps whose loss or gradient is not a finite number.

    No statistics: such a loss is a fact. A gradient that is not finite beside a loss
    that is gives a breach that is only logged, because mixed precision meets and skips
    such steps; if it does reach the weights, the next loss says so.

    Where the update of such a step was left out, by us or by a gradient scaler, the weights are
    as good as before: the breach then asks for ``skip_batches`` instead of the rule's own
    action. That is for once, not for ever: after ``max_left_out`` of them in a row the rule's
    action is due. On ranks whose own loss was finite it is a notice: they got the gradient from
    another.

    Raises:
        ValueError: If a setting is out of range.
    """

    RULE: ClassVar[str] = "non_finite"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

    reflex: bool = True
    """Whether a host leaves an update out whose reduced gradient is not finite, before it
    reaches the weights; only where the rule is enforced and that gradient is the same on
    all ranks."""

    max_left_out: int = 3
    """Updates in a row that may be left out before the rule's own action, 0 to 1000."""

    recovery_steps: int = 5
    """Finite steps in a row that close an incident, in steps."""

    def __post_init__(self) -> None:
        if self.recovery_steps < 1:
            raise ValueError(f"recovery_steps must be at least 1, got {self.recovery_steps}.")
        if not 0 <= self.max_left_out <= 1000:
            raise ValueError(f"max_left_out must be 0 to 1000, got {self.max_left_out}.")

    def start(self) -> NonFiniteState:
        return NonFiniteState()

    def observe(self, state: NonFiniteState, event: Sample) -> tuple[NonFiniteState, Breach | None]:
        bad = _non_finite(event)
        if not bad:
            return self._after_finite(state, event)
        num_left_out = state.num_left_out + 1 if _is_left_out(event) else 0
        severity = self._severity(bad, num_left_out)
        after = NonFiniteState(max(severity, state.severity), 0, num_left_out)
        if severity <= state.severity:
            return after, None
        return after, _breach(event, bad, severity, num_left_out)

    def _severity(self, bad: tuple[str, ...], num_left_out: int) -> int:
        if num_left_out > self.max_left_out or "parameters" in bad:
            return _LOST
        if not _LOSES_THE_STEP & set(bad):
            return _TOLD if num_left_out else _WARNED
        return _LEFT_OUT if num_left_out else _LOST

    def _after_finite(
        self, state: NonFiniteState, event: Sample
    ) -> tuple[NonFiniteState, Breach | None]:
        is_known = event.loss is not None or event.grad_norm is not None
        if not state.severity or not is_known:
            return state, None
        num_finite = state.num_finite + 1
        if num_finite < self.recovery_steps:
            return state._replace(num_finite=num_finite, num_left_out=0), None
        if state.severity == _TOLD:
            return NonFiniteState(), None
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


def _is_left_out(sample: Sample) -> bool:
    """Whether the weights are as before. A loss that is not finite has such a gradient, and so a
    scaler leaves its update out; should it not, the next losses say so."""
    is_by_scaler = sample.is_scaled and sample.loss is not None and not math.isfinite(sample.loss)
    return sample.is_update_left_out or is_by_scaler


def _non_finite(sample: Sample) -> tuple[str, ...]:
    """What was not finite, in the order in which it is computed."""
    bad = list(sample.non_finite)
    if "loss" not in bad and sample.loss is not None and not math.isfinite(sample.loss):
        place = bad.index("gradient") if "gradient" in bad else len(bad)
        bad.insert(place, "loss")
    norm = sample.grad_norm
    is_bad = sample.is_update_left_out or (norm is not None and not math.isfinite(norm))
    if "gradient" not in bad and is_bad:
        bad.append("gradient")
    return tuple(bad)


def _breach(sample: Sample, bad: tuple[str, ...], severity: int, num_left_out: int) -> Breach:
    batch = "" if sample.batch is None else f" (batch {sample.batch})"
    verb = "were" if bad[0] == "parameters" else "was"
    evidence: dict[str, Fact] = {"first": bad[0], "non_finite": list(bad), "batch": sample.batch}
    left_out = ""
    if num_left_out:
        evidence["num_left_out"] = num_left_out
        left_out = (
            f" Its update was left out, number {num_left_out} in a row: the weights are as before."
        )
    return Breach(
        rule=NonFinite.RULE,
        status=Status.NOTICE if severity == _TOLD else Status.BREACH,
        is_actionable=severity > _WARNED,
        action=_SKIP if severity == _LEFT_OUT else None,
        rank=sample.rank,
        step=sample.step,
        statistic=sample.loss if "loss" in bad else sample.grad_norm,
        limit=None,
        unit="loss" if "loss" in bad else "gradient norm",
        message=(
            f"On rank {sample.rank} the {bad[0]} {verb} not finite in step {sample.step}{batch}; "
            f"not finite, in the order of computing: {', '.join(bad)}.{left_out}"
        ),
        evidence=evidence,
    )
