"""Ranks that do not answer, by the contract's literal rule."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Status
from slav1.detectors._beats import BeatClock, ticked
from slav1.phase import Phase
from slav1.sample import Pulse


class LivenessLiteralState(NamedTuple):
    """The second in hand, and the seconds under the limit in a row."""

    clock: BeatClock = BeatClock()
    num_under: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessLiteral:
    """Finds ranks whose availability is too low for many seconds in a row.

    Availability is the share of the monitor's looks within one second at which the rank
    was there and not stopped. With the contract's figures a dead rank is found after a
    minute; :class:`~slav1.detectors.LivenessSequential` finds it at the next look.

    Raises:
        ValueError: If a setting is out of range.
    """

    RULE: ClassVar[str] = "liveness"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Pulse,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 60

    limit_percent: float = 99.95
    """Smallest share of a second in which the rank must answer, in percent."""

    consecutive: int = 60
    """Seconds in a row under the limit that make a breach."""

    def __post_init__(self) -> None:
        if not 0 < self.limit_percent <= 100:
            raise ValueError(
                f"limit_percent must be above 0 and at most 100, got {self.limit_percent}."
            )
        if self.consecutive < 1:
            raise ValueError(f"consecutive must be at least 1 second, got {self.consecutive}.")

    def start(self) -> LivenessLiteralState:
        return LivenessLiteralState()

    def observe(
        self, state: LivenessLiteralState, event: Pulse
    ) -> tuple[LivenessLiteralState, Breach | None]:
        if event.phase is Phase.DONE or not math.isfinite(event.time_s):
            return state, None
        clock, share = ticked(state.clock, event)
        if share is None:
            return state._replace(clock=clock), None
        is_under = share * 100.0 < self.limit_percent
        num_under = min(state.num_under + 1, self.consecutive) if is_under else 0
        after = LivenessLiteralState(clock, num_under)
        was_open, is_open = state.num_under >= self.consecutive, num_under >= self.consecutive
        if was_open == is_open:
            return after, None
        return after, self._finding(event, share * 100.0, is_breach=is_open)

    def _finding(self, pulse: Pulse, percent: float, *, is_breach: bool) -> Breach:
        text = (
            f"Rank {pulse.rank} answered less than {self.limit_percent} % of the time in each of "
            f"the last {self.consecutive} seconds."
        )
        return Breach(
            rule=self.RULE,
            status=Status.BREACH if is_breach else Status.RECOVERED,
            is_actionable=is_breach,
            rank=pulse.rank,
            step=pulse.step,
            phase=pulse.phase,
            statistic=percent,
            limit=self.limit_percent,
            unit="percent",
            message=text if is_breach else f"Rank {pulse.rank} answers again.",
            evidence={"process_state": pulse.process_state, "exit_reason": pulse.exit_reason},
        )
