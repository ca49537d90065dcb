"""What a drift of memory is told as: the series, how fast, over what, how much is left."""

from dataclasses import dataclass

from slav1.breach import Breach, Fact, Status
from slav1.detectors._memory_growth import KINDS, STEPS, Growth
from slav1.detectors._memory_series import Series, standing
from slav1.sample import Sample, Usage

RULE = "memory_drift"
WANTS_ALLOCATIONS = "allocations"
"""Value of ``evidence.wants`` of a finding after which the rank looks for the line of code."""

FALLEN = 0.5
"""Share of a growth that is gone where a series has fallen back."""

SHARE_TO_WAIT = 0.5
"""Share of the time left that what is done about a drift may wait for a checkpoint."""

LONGEST_WAIT_S = 3_600.0
"""How long it may wait where that time is not known, in seconds."""

_NAMES = {
    "allocated": "Device memory held by tensors",
    "fragmentation": "Device memory that the allocator holds and no tensor uses",
    "host": "Host memory",
    "fds": "The number of open file descriptors",
    "threads": "The number of threads",
}
_WANTING = {"allocated": "device", "host": "host"}
_EVENTS = {"save": "checkpoint", "evaluation": "evaluation", "epoch": "epoch"}
_EACH_WITH = {"save": "a checkpoint", "evaluation": "an evaluation", "epoch": "an epoch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much a series has left."""

    value: float
    """Its last floor."""

    ceiling: float
    """What there is for it; 0 if that is not known."""

    step_s: float
    """Time of one step, in seconds; 0 if it is not known."""

    def steps_left(self, per_step: float) -> float | None:
        """Steps until there is nothing left; None if that can't be told."""
        if not self.ceiling > 0.0 or not per_step > 0.0:
            return None
        return max(0.0, self.ceiling - self.value) / per_step

    def seconds_left(self, per_step: float) -> float | None:
        """The same in seconds."""
        steps = self.steps_left(per_step)
        return None if steps is None or not self.step_s > 0.0 else steps * self.step_s


def found(
    event: Sample | Usage,
    series: str,
    kind: str,
    growth: Growth,
    room: Room,
    *,
    score: float,
    arl0: float,
) -> Breach:
    """A series grows.

    Args:
        event: What was seen last.
        series: Its name.
        kind: ``steady_rise``, ``drift`` or ``near_ceiling``.
        growth: How it has grown.
        room: How much is left.
        score: Evidence of the sign test beside its limit.
        arl0: Steps between two false alarms of the sign test.
    """
    is_drift = kind == "drift"
    return Breach(
        rule=RULE,
        is_actionable=kind != "steady_rise",
        rank=event.rank,
        step=event.step,
        statistic=growth.per_step,
        limit=0.0,
        unit=f"{_unit(series)} per step",
        arl0=arl0 if is_drift else None,
        message=_message(event.rank, series, growth, room),
        evidence=_facts(series, kind, growth, room, score),
    )


def has_fallen_back(series: Series) -> bool:
    """Whether half of what a series had grown by is gone."""
    half = series.peak - FALLEN * (series.peak - series.onset)
    return standing(series)[1] < half


def levelled_off(event: Sample | Usage, name: str, series: Series) -> Breach:
    """A series that grew has stopped, or has fallen back."""
    value = standing(series)[1]
    did = "has fallen back" if has_fallen_back(series) else "has not grown any more"
    return Breach(
        rule=RULE,
        status=Status.RECOVERED,
        rank=event.rank,
        step=event.step,
        statistic=None,
        limit=None,
        unit="",
        message=f"{_NAMES[name]} of rank {event.rank} {did} since step {series.peak_step}: "
        f"{value:,.0f}{_spaced(name)}, at most {series.peak:,.0f} before.",
        evidence={"series": name, "value": value, "peak": series.peak},
    )


def _message(rank: int, name: str, growth: Growth, room: Room) -> str:
    unit = _spaced(name)
    over = f"{growth.total:,.0f}{unit} in {growth.num_steps} steps"
    if growth.cause == STEPS:
        rate = f"by {growth.per_step:.2g}{unit} per step ({over}"
    else:
        event = _EVENTS[KINDS[growth.cause]]
        also = " and ".join(_EACH_WITH[KINDS[k]] for k in growth.also)
        also = f", each with {also}," if also else ""
        rate = f"by about {growth.per_event:.3g}{unit} per {event}{also} ({growth.num_events} "
        rate += f"of them, {over}"
    text = f"{_NAMES[name]} of rank {rank} grows {rate}, now {growth.end:,.0f}{unit})."
    steps_left = room.steps_left(growth.per_step)
    if steps_left is None:
        return text
    seconds = room.seconds_left(growth.per_step)
    within = "" if seconds is None else f", in about {_duration(seconds)}"
    return (
        f"{text} At this rate the {room.ceiling:,.0f}{unit} that there are for it are used up "
        f"after {steps_left:,.0f} more steps{within}."
    )


def _facts(name: str, kind: str, growth: Growth, room: Room, score: float) -> dict[str, Fact]:
    per = "step" if growth.cause == STEPS else KINDS[growth.cause]
    facts: dict[str, Fact] = {
        "kind": kind,
        "series": name,
        "unit": _unit(name),
        "per": per,
        "per_step": growth.per_step,
        "growth": growth.total,
        "first_step": growth.since_step,
        "num_steps": growth.num_steps,
        "value": growth.end,
        "ceiling": room.ceiling if room.ceiling > 0.0 else None,
        "steps_left": room.steps_left(growth.per_step),
        "seconds_left": room.seconds_left(growth.per_step),
        "score_ratio": score,
    }
    seconds = room.seconds_left(growth.per_step)
    # To a checkpoint is well worth the wait, but not till the process is killed.
    facts["may_wait_s"] = LONGEST_WAIT_S if seconds is None else seconds * SHARE_TO_WAIT
    if growth.cause != STEPS:
        facts["per_event"] = growth.per_event
        facts["num_events"] = growth.num_events
        facts["together_with"] = [KINDS[k] for k in growth.also]
    if name in _WANTING:
        facts["wants"] = f"{_WANTING[name]}_{WANTS_ALLOCATIONS}"
    return facts


def _unit(name: str) -> str:
    return {"fds": "descriptors", "threads": "threads"}.get(name, "MiB")


def _spaced(name: str) -> str:
    return {"fds": "", "threads": ""}.get(name, " MiB")


def _duration(seconds: float) -> str:
    for size, word in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2.0 * size:
            return f"{seconds / size:,.0f} {word}"
    return f"{seconds:.0f} s"
