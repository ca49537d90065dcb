"""Checkpoint writes that fail too often, by the contract's literal rule."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Status
from slav1.detectors._saves import RULE, check_target
from slav1.sample import Save

MOST_SAVES = 1000
"""Saves of a window that are remembered."""


class CkptSuccessLiteralState(NamedTuple):
    """The saves of the last minutes."""

    times_s: tuple[float, ...] = ()
    failed: tuple[int, ...] = ()
    """1 for each save that failed, in the order of ``times_s``."""
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CkptSuccessLiteral:
    """Finds a share of good writes in the last minutes that is under the contract's.

    With the few writes of five minutes any failure is a breach, and two good writes are no
    proof of anything.

    Raises:
        ValueError: If a setting is out of range.
    """

    RULE: ClassVar[str] = RULE
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Save,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 334

    target_ratio: float = 0.997
    """Smallest share of writes that succeed."""

    window_s: float = 300.0
    """How far to look back, in seconds."""

    def __post_init__(self) -> None:
        check_target(self.target_ratio)
        if not self.window_s > 0:
            raise ValueError(f"window_s must be above 0, got {self.window_s}.")

    def start(self) -> CkptSuccessLiteralState:
        return CkptSuccessLiteralState()

    def observe(
        self, state: CkptSuccessLiteralState, event: Save
    ) -> tuple[CkptSuccessLiteralState, Breach | None]:
        if not math.isfinite(event.time_s):
            return state, None
        past = zip(state.times_s, state.failed, strict=True)
        # After a restart of the machine its clock starts anew: what lies ahead is long past.
        kept = [each for each in past if 0.0 <= event.time_s - each[0] <= self.window_s]
        kept = [*kept, (event.time_s, int(not event.succeeded))][-MOST_SAVES:]
        num_failed = sum(failed for _, failed in kept)
        ratio = 1.0 - num_failed / len(kept)
        is_low = ratio < self.target_ratio
        after = CkptSuccessLiteralState(
            tuple(time for time, _ in kept), tuple(failed for _, failed in kept), is_low
        )
        if is_low == state.is_open and (event.succeeded or not is_low):
            return after, None
        return after, self._finding(event, ratio, num_failed, len(kept))

    def _finding(self, event: Save, ratio: float, num_failed: int, num_saves: int) -> Breach:
        is_low = ratio < self.target_ratio
        return Breach(
            rule=RULE,
            status=Status.BREACH if is_low else Status.RECOVERED,
            rank=None,
            step=event.step,
            statistic=ratio,
            limit=self.target_ratio,
            unit="share of saves",
            message=(
                f"{num_failed} of {num_saves} checkpoint writes of the last "
                f"{self.window_s:.0f} s failed."
            ),
            evidence={"num_failed": num_failed, "num_saves": num_saves},
        )
