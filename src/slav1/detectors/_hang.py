"""What both forms of the hang rule share: phases with limits of their own, and incidents."""

import math
from typing import NamedTuple, Protocol

from slav1.breach import Breach, Fact, Status
from slav1.phase import STEP_PHASES, Phase
from slav1.sample import Pulse

RULE = "hang"
# Two readings of one progress differ by less than this, in seconds.
SAME_PROGRESS_S = 1e-3
# A monitor that looks again after so many times its usual interval was held up itself.
PAUSE_RATIO = 5.0
# Shorter hold-ups are not worth excusing, in seconds.
SHORTEST_PAUSE_S = 0.5
INTERVAL_GAIN = 0.1

QUIET, WARNED, STOPPED = 0, 1, 2


class PhaseLimits(Protocol):
    """Settings: how long each phase may last without progress, in seconds."""

    @property
    def limit_s(self) -> float: ...
    @property
    def first_step_limit_s(self) -> float: ...
    @property
    def evaluation_limit_s(self) -> float: ...
    @property
    def checkpoint_limit_s(self) -> float: ...
    @property
    def setup_limit_s(self) -> float: ...
    @property
    def teardown_limit_s(self) -> float: ...
    @property
    def warmup_steps(self) -> int: ...


def check_limits(limits: PhaseLimits) -> None:
    """Raises ``ValueError`` for a limit that cannot be one."""
    for name in (
        "limit_s",
        "first_step_limit_s",
        "evaluation_limit_s",
        "checkpoint_limit_s",
        "setup_limit_s",
        "teardown_limit_s",
    ):
        if not getattr(limits, name) > 0:
            raise ValueError(f"{name} must be above 0 seconds, got {getattr(limits, name)}.")
    if limits.warmup_steps < 1:
        raise ValueError(
            f"warmup_steps must be at least 1, got {limits.warmup_steps}: the first step of a "
            "process compiles and connects, and is never as short as the others."
        )


def fixed_limit_s(limits: PhaseLimits, pulse: Pulse) -> float:
    """How long the phase a rank is in may last by the fixed limits, in seconds."""
    if pulse.phase in STEP_PHASES:
        is_first = pulse.num_steps < limits.warmup_steps
        return limits.first_step_limit_s if is_first else limits.limit_s
    return {
        Phase.SETUP: limits.setup_limit_s,
        Phase.EVALUATION: limits.evaluation_limit_s,
        Phase.CHECKPOINT: limits.checkpoint_limit_s,
    }.get(pulse.phase, limits.teardown_limit_s)


class Watch(NamedTuple):
    """The pulses of one rank: when it last got on, and whether it is stalled."""

    num_pulses: int = 0
    last_pulse_s: float = 0.0
    interval_s: float = 0.0
    """Usual time between two looks of the monitor."""
    progress_at_s: float = 0.0
    """When the rank last entered a phase."""
    excused_s: float = 0.0
    """Time since then in which the monitor itself was held up."""
    stall_s: float = 0.0
    """Time without progress that counts."""
    severity: int = QUIET


class Limits(NamedTuple):
    """How long a rank may make no progress right now, in seconds."""

    hard_s: float
    """Past it the job is hung."""
    soft_s: float | None = None
    """Past it something is odd; None where too little was learned."""
    typical_s: float | None = None
    """Usual length of the phase, for the evidence."""
    soft_arl0: float | None = None
    """Healthy phases between two over ``soft_s``."""


def looked(watch: Watch, pulse: Pulse) -> Watch:
    """Takes in one pulse.

    Time in which the monitor was not looking either (a suspended machine, a starved
    core) does not count as a stall: the rank may have been held up by the same thing.
    """
    progress_at_s = pulse.time_s - pulse.since_progress_s
    if watch.num_pulses == 0:
        return Watch(
            num_pulses=1,
            last_pulse_s=pulse.time_s,
            progress_at_s=progress_at_s,
            stall_s=pulse.since_progress_s,
        )
    has_progressed = progress_at_s > watch.progress_at_s + SAME_PROGRESS_S
    gap_s = max(0.0, pulse.time_s - watch.last_pulse_s)
    usual_s = watch.interval_s or gap_s
    is_pause = gap_s > max(PAUSE_RATIO * usual_s, SHORTEST_PAUSE_S)
    excused_s = 0.0 if has_progressed else watch.excused_s
    if is_pause:
        excused_s += min(gap_s - usual_s, pulse.since_progress_s)
    return Watch(
        num_pulses=watch.num_pulses + 1,
        last_pulse_s=pulse.time_s,
        # At most doubled at once, so that one pause does not become the usual interval.
        interval_s=usual_s + INTERVAL_GAIN * (min(gap_s, 2.0 * usual_s) - usual_s),
        progress_at_s=progress_at_s if has_progressed else watch.progress_at_s,
        excused_s=excused_s,
        stall_s=max(0.0, pulse.since_progress_s - excused_s),
        severity=watch.severity,
    )


def judgement(watch: Watch, pulse: Pulse, limits: Limits) -> tuple[Watch, Breach | None]:
    """Takes in one pulse; opens, strengthens or closes the incident of its rank.

    A rank that is gone is left to the liveness rule. From one that said goodbye nothing
    is expected any more.
    """
    if not pulse.is_alive or not math.isfinite(pulse.time_s + pulse.since_progress_s):
        return watch, None
    after = looked(watch, pulse)
    severity = _severity(after.stall_s, limits)
    if pulse.phase is Phase.DONE:
        severity = QUIET
    if severity > watch.severity:
        return after._replace(severity=severity), _breach(after, pulse, limits, severity)
    if severity == QUIET and watch.severity > QUIET:
        return after._replace(severity=QUIET), _recovery(pulse, watch.stall_s)
    return after, None


def _severity(stall_s: float, limits: Limits) -> int:
    if stall_s > limits.hard_s:
        return STOPPED
    if limits.soft_s is not None and stall_s > limits.soft_s:
        return WARNED
    return QUIET


def _recovery(pulse: Pulse, stalled_s: float) -> Breach:
    """The end of an incident: the rank has got on."""
    return Breach(
        rule=RULE,
        status=Status.RECOVERED,
        is_actionable=False,
        rank=pulse.rank,
        step=pulse.step,
        phase=pulse.phase,
        statistic=stalled_s,
        limit=None,
        unit="s",
        message=(
            f"Rank {pulse.rank} moves again: step {pulse.step}, {_name(pulse.phase)}, after "
            f"{stalled_s:.1f} s without progress."
        ),
        evidence={"seconds_since_progress": pulse.since_progress_s},
    )


def _breach(watch: Watch, pulse: Pulse, limits: Limits, severity: int) -> Breach:
    is_hard = severity == STOPPED
    limit_s = limits.hard_s if is_hard or limits.soft_s is None else limits.soft_s
    evidence: dict[str, Fact] = {
        "kind": "hard_limit" if is_hard else "learned_limit",
        "seconds_since_progress": pulse.since_progress_s,
        "excused_s": watch.excused_s,
        "process_state": pulse.process_state,
        "typical_s": limits.typical_s,
        "soft_limit_s": limits.soft_s,
        "hard_limit_s": limits.hard_s,
    }
    return Breach(
        rule=RULE,
        is_actionable=is_hard,
        rank=pulse.rank,
        step=pulse.step,
        phase=pulse.phase,
        statistic=watch.stall_s,
        limit=limit_s,
        unit="s",
        arl0=None if is_hard else limits.soft_arl0,
        message=(
            f"Rank {pulse.rank} has stalled in {_name(pulse.phase)} of step {pulse.step} for "
            f"{watch.stall_s:.1f} s; its limit there is {limit_s:.1f} s."
        ),
        evidence=evidence,
    )


def _name(phase: Phase) -> str:
    return phase.name.lower()
