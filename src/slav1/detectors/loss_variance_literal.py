"""Variance of the loss, by the contract's literal rule."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Fact, Status
from slav1.detectors._grad_norm import RISE_RATIO
from slav1.detectors._round import mean_density, mean_grad_norm, mean_loss, rank_standing_out
from slav1.detectors._sparsity import FALL_RATIO
from slav1.sample import Round

# Longest window: its losses lie in every checkpoint and are summed at every step.
MAX_WINDOW = 4096


class Moments(NamedTuple):
    """Mean and spread of everything seen so far, updated one value at a time."""

    num_seen: int = 0
    mean: float = 0.0
    sum_squares: float = 0.0
    """Sum of the squared distances from the mean."""

    def with_value(self, value: float) -> "Moments":
        num_seen = self.num_seen + 1
        distance = value - self.mean
        mean = self.mean + distance / num_seen
        return Moments(num_seen, mean, self.sum_squares + distance * (value - mean))

    @property
    def deviation(self) -> float:
        return math.sqrt(self.sum_squares / self.num_seen) if self.num_seen else 0.0


class LossVarianceLiteralState(NamedTuple):
    """The last losses, and the history of their variances."""

    recent: tuple[float, ...] = ()
    variances: Moments = Moments()
    norms: Moments = Moments()
    """Of the gradient norm."""
    is_open: bool = False
    densities: Moments = Moments()
    """Of the share of the gradient that is not zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVarianceLiteral:
    """Finds steps at which the variance of the last losses stands far above its history.

    The history is every variance since the start, the odd ones included, as the contract
    has it. That makes the rule blind for long: the fall at the start of a training lies in
    its baseline and hides spikes of 20 sigmas, level shifts and slow ramps, and one spike
    hides the next. :class:`~slav1.detectors.LossVarianceSequential` is the rule to use.

    The history takes O(1) per step; the variance of the window itself is computed afresh,
    which is exact where adding and removing values would lose every digit of a loss
    that is large beside its noise.

    A breach that comes with a gradient norm at four times its mean asks for a ``snapshot``,
    one with 40 % fewer elements of the gradient than usual that are not zero for
    ``clip_and_decay``, and any other for the rule's own action.

    Raises:
        ValueError: If a setting is out of range.

    Source:
        Welford, "Note on a Method for Calculating Corrected Sums of Squares and
        Products", Technometrics 4(3), 1962, for the moments.
    """

    RULE: ClassVar[str] = "loss_variance"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Round,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 256

    window: int = 128
    """Losses that one variance is taken over, in steps. Silent until there are as many
    variances as well."""

    limit_sigmas: float = 15.0
    """Height above the mean variance, in standard deviations of the variances."""

    def __post_init__(self) -> None:
        if not 2 <= self.window <= MAX_WINDOW:
            raise ValueError(
                f"window must be from 2 to {MAX_WINDOW} steps, got {self.window}: it is kept in "
                "every checkpoint and gone through at every step."
            )
        if not self.limit_sigmas > 0:
            raise ValueError(f"limit_sigmas must be above 0, got {self.limit_sigmas}.")

    def start(self) -> LossVarianceLiteralState:
        return LossVarianceLiteralState()

    def observe(
        self, state: LossVarianceLiteralState, event: Round
    ) -> tuple[LossVarianceLiteralState, Breach | None]:
        loss, norm = mean_loss(event), mean_grad_norm(event)
        share = mean_density(event)
        rise_ratio = _ratio(state.norms, norm)
        density_ratio = _ratio(state.densities, share)
        if norm is not None:
            state = state._replace(norms=state.norms.with_value(norm))
        if share is not None:
            state = state._replace(densities=state.densities.with_value(share))
        if loss is None:
            return state, None
        recent = (*state.recent, loss)[-self.window :]
        state = state._replace(recent=recent)
        if len(recent) < self.window:
            return state, None
        variance = _variance(recent)
        limit = state.variances.mean + self.limit_sigmas * state.variances.deviation
        is_over = state.variances.num_seen >= self.window and variance > limit
        after = state._replace(variances=state.variances.with_value(variance), is_open=is_over)
        if is_over == state.is_open:
            return after, None
        ratios = (rise_ratio, density_ratio)
        return after, _finding(event, variance, limit, ratios, is_breach=is_over)


def _variance(losses: tuple[float, ...]) -> float:
    mean = sum(losses) / len(losses)
    distances = [loss - mean for loss in losses]
    return sum([distance * distance for distance in distances]) / len(losses)


def _ratio(history: Moments, value: float | None) -> float | None:
    """A value as a multiple of its mean so far."""
    if value is None or not history.mean > 0.0:
        return None
    return value / history.mean


def _action(rise_ratio: float | None, density_ratio: float | None) -> str | None:
    """What the state of the gradient asks for."""
    if rise_ratio is not None and rise_ratio >= RISE_RATIO:
        return "snapshot"
    if density_ratio is not None and density_ratio <= FALL_RATIO:
        return "clip_and_decay"
    return None


def _finding(
    event: Round,
    variance: float,
    limit: float,
    ratios: tuple[float | None, float | None],
    *,
    is_breach: bool,
) -> Breach:
    evidence: dict[str, Fact] = {"kind": "windowed_variance", "grad_norm_ratio": ratios[0]}
    if ratios[1] is not None:
        evidence["grad_density_ratio"] = ratios[1]
    side = "above" if is_breach else "at or under"
    return Breach(
        rule=LossVarianceLiteral.RULE,
        status=Status.BREACH if is_breach else Status.RECOVERED,
        is_actionable=is_breach,
        action=_action(*ratios) if is_breach else None,
        rank=rank_standing_out(event, math.sqrt(variance)) if is_breach else None,
        step=event.step,
        statistic=variance,
        limit=limit,
        unit="loss squared",
        message=(
            f"The variance of the last losses is {variance:.3g} at step {event.step}, {side} its "
            f"limit of {limit:.3g}."
        ),
        evidence=evidence,
    )
