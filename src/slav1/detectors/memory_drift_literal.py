"""Memory that grows, by the contract's literal rule."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Status
from slav1.detectors._memory_series import is_reading
from slav1.sample import Sample, Usage


class MemoryDriftLiteralState(NamedTuple):
    """The window in hand, and what the rounds before it came to."""

    has_device: bool = False
    """Whether the rank tells of device memory; host memory is not looked at then."""
    window: tuple[float, ...] = ()
    drifts: tuple[float, ...] = ()
    """One number a round, oldest first."""
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDriftLiteral:
    """Finds rounds in which memory grew more than in those before.

    A round is a window of 64 readings: of device memory where the rank has a device, else of
    host memory. Its number is the cumulative first difference at its end, normalised to 0 to 1
    between the lowest and the highest in the window (the published text's
    ``extract_cumulative_drift``; which of the 64 counts it leaves open). The limit is the mean
    of the last ten rounds plus a multiple of their standard deviation, calibrated anew after
    each.

    That makes the rule nervous and blind at once. A window that only rises ends at 1 whether
    it rose by a byte or by a gigabyte, so noise alone reaches the limit now and then; and what
    goes on for ten rounds is the calibration: a lasting leak is soon called healthy.
    :class:`~slav1.detectors.MemoryDriftSequential` is the rule to use.

    Raises:
        ValueError: If a setting is out of range.
    """

    RULE: ClassVar[str] = "memory_drift"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample, Usage)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 704

    window: int = 64
    """Readings in a round, 2 to 4096."""

    num_rounds: int = 10
    """Rounds that the limit is calibrated with, 2 to 1000. Silent until there are as many."""

    limit_sigmas: float = 2.0
    """Height above the mean of the rounds, in their standard deviations."""

    def __post_init__(self) -> None:
        if not 2 <= self.window <= 4096:
            raise ValueError(f"window must be 2 to 4096 readings, got {self.window}.")
        if not 2 <= self.num_rounds <= 1000:
            raise ValueError(f"num_rounds must be 2 to 1000, got {self.num_rounds}.")
        if not self.limit_sigmas > 0:
            raise ValueError(f"limit_sigmas must be above 0, got {self.limit_sigmas}.")

    def start(self) -> MemoryDriftLiteralState:
        return MemoryDriftLiteralState()

    def observe(
        self, state: MemoryDriftLiteralState, event: Sample | Usage
    ) -> tuple[MemoryDriftLiteralState, Breach | None]:
        is_device = isinstance(event, Sample)
        value = event.allocated_mib if isinstance(event, Sample) else event.host_mib
        if value is None or not is_reading(value) or (state.has_device and not is_device):
            return state, None
        if is_device and not state.has_device:
            state = MemoryDriftLiteralState(has_device=True, is_open=state.is_open)
        window = (*state.window, float(value))
        if len(window) < self.window:
            return state._replace(window=window), None
        return self._round_ends(state, window, event)

    def _round_ends(
        self, state: MemoryDriftLiteralState, window: tuple[float, ...], event: Sample | Usage
    ) -> tuple[MemoryDriftLiteralState, Breach | None]:
        drift, known = extract_cumulative_drift(window), state.drifts
        after = state._replace(window=(), drifts=(*known, drift)[-self.num_rounds :])
        if len(known) < self.num_rounds:
            return after, None
        mean = sum(known) / len(known)
        variance = sum((each - mean) * (each - mean) for each in known) / len(known)
        limit = mean + self.limit_sigmas * math.sqrt(variance)
        is_over = drift > limit
        if is_over == state.is_open:
            return after, None
        breach = _finding(event, drift, limit, window, is_breach=is_over)
        return after._replace(is_open=is_over), breach


def extract_cumulative_drift(window: tuple[float, ...]) -> float:
    """Where the cumulative first difference of some readings ends, from 0 to 1.

    Args:
        window: Readings in their order; at least one, all finite.

    Returns:
        0 if it ends at its lowest or never changes, 1 if it ends at its highest.

    Example:
        >>> extract_cumulative_drift((5.0, 6.0, 8.0))
        1.0
        >>> extract_cumulative_drift((5.0, 9.0, 7.0))
        0.5
    """
    # First differences add up to the distance from the first reading.
    lowest, highest = min(window), max(window)
    return (window[-1] - lowest) / (highest - lowest) if highest > lowest else 0.0


def _finding(
    event: Sample | Usage,
    drift: float,
    limit: float,
    window: tuple[float, ...],
    *,
    is_breach: bool,
) -> Breach:
    series = "allocated" if isinstance(event, Sample) else "host"
    side = "above" if is_breach else "at or under"
    return Breach(
        rule=MemoryDriftLiteral.RULE,
        status=Status.BREACH if is_breach else Status.RECOVERED,
        is_actionable=is_breach,
        rank=event.rank,
        step=event.step,
        statistic=drift,
        limit=limit,
        unit="share of the window's range",
        message=(
            f"The cumulative drift of {series} memory of rank {event.rank} is {drift:.2f} over "
            f"{len(window)} readings, {side} its limit of {limit:.2f}."
        ),
        evidence={"kind": "cumulative_drift", "series": series, "growth": window[-1] - window[0]},
    )
