"""What a rank's readings of memory are kept as: series, counts, ceilings, the time of a step."""

from typing import NamedTuple

from slav1.detectors._memory_report import Room
from slav1.detectors._memory_series import BASE_STEPS, LOWEST, Counts, Series, is_reading
from slav1.sample import Sample, Usage

SERIES = ("allocated", "fragmentation", "host", "fds", "threads")
NONE_YET = -1
# Steps over which the time of one is taken.
_CLOCK_STEPS = 1_000
LARGEST_STEP = 10**15


class MemoryDriftState(NamedTuple):
    """What is known about one rank."""

    first_step: int = NONE_YET
    """Step from which steps are counted as warm-up."""
    clock_step: int = NONE_YET
    clock_s: float = 0.0
    step_s: float = 0.0
    """Time of one step, in seconds; 0 if it is not known yet."""
    counts: Counts = (0, 0, 0)
    ceiling_mib: float = 0.0
    free_mib: float = 0.0
    fd_limit: float = 0.0
    device_mib: float = 0.0
    """What there is for the rank; 0 if it is not known."""
    series: tuple[Series, ...] = (Series(),) * len(SERIES)
    """In the order of ``SERIES``."""


def readings_of(event: Sample | Usage) -> list[tuple[int, float]]:
    """What an event tells, with the number of the series."""
    if isinstance(event, Sample):
        allocated = event.allocated_mib
        if allocated is None:
            return []
        reserved = event.reserved_mib
        values = [allocated, None if reserved is None else reserved - allocated]
    else:
        values = [None, None, event.host_mib, event.num_fds, event.num_threads]
    return [(n, float(v)) for n, v in enumerate(values) if v is not None and is_reading(v)]


def told(state: MemoryDriftState, event: Sample | Usage) -> MemoryDriftState:
    """The memory with what an event says about counts and ceilings."""
    if isinstance(event, Sample):
        return state
    return state._replace(
        counts=(event.num_saves, event.num_evaluations, event.num_epochs),
        ceiling_mib=_known(event.ceiling_mib, state.ceiling_mib),
        free_mib=_known(event.free_mib, state.free_mib),
        fd_limit=_known(event.fd_limit, state.fd_limit),
        device_mib=_known(event.device_mib, state.device_mib),
    )


def _known(value: float | None, before: float) -> float:
    return float(value) if value is not None and is_reading(value) else before


def timed(state: MemoryDriftState, event: Sample | Usage) -> MemoryDriftState:
    """The memory with the time of a step, as far as it can be told."""
    if state.first_step == NONE_YET:
        state = state._replace(first_step=event.step - event.step % BASE_STEPS)
    if not abs(event.time_s) < LARGEST_STEP:
        return state
    num_steps, lasted_s = event.step - state.clock_step, event.time_s - state.clock_s
    has_begun = state.clock_step != NONE_YET
    if not has_begun or not 0 <= num_steps < _CLOCK_STEPS or lasted_s < 0.0:
        return state._replace(clock_step=event.step, clock_s=event.time_s)
    if num_steps < BASE_STEPS:
        return state
    return state._replace(step_s=lasted_s / num_steps)


def room_of(state: MemoryDriftState, number: int, series: Series) -> Room:
    """What there is for a series; 0 where it is not known."""
    value = series.floors[-1][LOWEST]
    name = SERIES[number]
    ceiling = {"fds": state.fd_limit, "threads": 0.0}.get(name, state.device_mib)
    if name == "host":
        # Others live under the same ceiling.
        ceiling = value + state.free_mib if state.free_mib else state.ceiling_mib
    return Room(value=value, ceiling=ceiling, step_s=state.step_s)
