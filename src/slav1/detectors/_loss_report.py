"""Puts what was found about a loss into words and numbers."""

import math
from typing import NamedTuple

from slav1.breach import Breach, Fact, Status
from slav1.detectors._grad_norm import GradNorm
from slav1.detectors._loss_episode import CAUTIONED, NOTICED, Episode, Finding
from slav1.detectors._loss_tests import Reading
from slav1.detectors._round import batches, rank_standing_out
from slav1.detectors._sparsity import Density
from slav1.sample import Round

RULE = "loss_variance"
# What the clipped mean deviation takes for the standard deviation of Student's t with 4
# degrees of freedom.
T4_SCALE = 1.17
_TEXTS = {
    "outlier": "The loss of step {step} stands {statistic:.1f} {unit} above its trend: {change}",
    "outliers": "The loss stands far above its trend twice in a row, at step {step}: {change}",
    "jump": "The loss jumps by {statistic:.1f} {unit} at step {step}: {change}",
    "shift": "The loss has moved up by step {step}: {change}",
    "variance": "The noise of the loss has grown by step {step}: {change}",
    "grad_norm": "The gradient norm is {statistic:.1f} {unit} at step {step}: {change}",
    "sparsity": "Only {statistic:.2f} {unit} of the gradient is not zero at step {step}: {change}",
}


class Look(NamedTuple):
    """Everything known about one step."""

    event: Round
    reading: Reading | None
    """None if the loss is unknown or not finite."""
    norm: GradNorm
    density: Density
    usual_lead: float
    """How far the highest loss of a rank lies above the others in the rounds before."""


def heavy_tail_arl0(sigmas: float, *, num_in_a_row: int = 1) -> float:
    """Mean number of healthy steps until the noise alone stands so far out.

    The noise is taken to be as heavy-tailed as Student's t with 4 degrees of freedom,
    independent from step to step.
    """
    t = sigmas * T4_SCALE
    width = 4.0 + t * t
    # Survival function of t with 4 degrees, written so that nothing cancels far out.
    root = math.sqrt(width)
    share = (2.0 / (root + t) - t / width) / root
    return float(max(share, 1e-18) ** -num_in_a_row)


def breach_from(episode: Episode, look: Look, finding: Finding) -> Breach:
    """The notice or breach that tells of a finding."""
    step = look.event.step
    rise = 0.0 if look.reading is None else look.reading.loss - episode.level
    text = _TEXTS[finding.kind].format(
        step=step,
        statistic=finding.statistic,
        unit=finding.unit,
        change=_change(episode, look.reading),
    )
    return Breach(
        rule=RULE,
        status=Status.NOTICE if finding.severity == NOTICED else Status.BREACH,
        is_actionable=finding.severity >= CAUTIONED,
        action=finding.action,
        rank=rank_standing_out(look.event, rise, usual_lead=look.usual_lead),
        step=step,
        statistic=finding.statistic,
        limit=finding.limit,
        unit=finding.unit,
        arl0=finding.arl0,
        message=text,
        evidence=_evidence(episode, look, finding.kind),
    )


def recovery_from(episode: Episode, look: Look, *, is_new_level: bool) -> Breach:
    """The end of an episode in which there was a breach."""
    how = "has settled at a new level" if is_new_level else "is back where it came from"
    loss = None if look.reading is None else look.reading.loss
    return Breach(
        rule=RULE,
        status=Status.RECOVERED,
        is_actionable=False,
        rank=None,
        step=look.event.step,
        statistic=loss,
        limit=episode.level,
        unit="loss",
        message=f"The loss {how} at step {look.event.step}: {_change(episode, look.reading)}",
        evidence=_evidence(episode, look, "recovery"),
    )


def _change(episode: Episode, reading: Reading | None) -> str:
    if reading is None:
        return "its loss is not known."
    return f"{reading.loss:.4g}, expected {episode.level:.4g} +- {episode.scale:.2g}."


def _evidence(episode: Episode, look: Look, kind: str) -> dict[str, Fact]:
    evidence: dict[str, Fact] = {"kind": kind, "first_step": episode.first_step}
    if look.reading is not None:
        evidence |= {
            "loss": look.reading.loss,
            "expected": episode.level,
            "sigma": episode.scale,
            "rise_ratio": (look.reading.loss - episode.level) / max(abs(episode.level), 1e-12),
        }
    if look.norm.trend.num_seen:
        evidence["grad_norm_ratio"] = look.norm.ratio
    if look.density.trend.num_seen:
        evidence["grad_density_ratio"] = look.density.ratio
    found = batches(look.event)
    if found:
        evidence["batches"] = list(found)
    return evidence
