"""Jobs that stand still with their device memory in pieces, by the contract's literal rule."""

import math
import re
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Status
from slav1.detectors._fragmentation import fragmentation_percent
from slav1.phase import STEP_PHASES
from slav1.sample import Pulse, Sample

FINETUNE = "distributed_finetune"
"""The kind of job that the rule is about."""

_JOB_TYPE = re.compile("[a-z][a-z0-9_]*")
_UNKNOWN = -1.0
# A monitor that stood still itself has seen no stall.
_MAX_GAP_S = 5.0


class StallLiteralState(NamedTuple):
    """The last step's memory, and since when there was none."""

    percent: float = _UNKNOWN
    since_s: float = _UNKNOWN
    """First look after the last step, on the monitor's clock."""
    looked_s: float = _UNKNOWN
    is_open: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLiteral:
    """Finds ranks that make no step while much of their device memory is in pieces.

    The time counts from the monitor's first look after a step, in the phases of a step only.
    Without readings of device memory the rule is not exercised, and in a job that is not
    ``distributed_finetune`` it finds nothing.

    The same as a policy: ``slav1:stall.rego``.

    Raises:
        ValueError: If a setting is out of range.
    """

    RULE: ClassVar[str] = "stall"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample, Pulse)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

    limit_percent: float = 65.0
    """Share of the device memory held by torch's allocator that may be in no tensor, in
    percent."""

    limit_s: float = 30.0
    """Longest time without a step, in seconds."""

    job_type: str = FINETUNE
    """What kind of job this is; also what a policy is told as ``job_type``."""

    def __post_init__(self) -> None:
        if not 0 <= self.limit_percent < 100:
            raise ValueError(
                f"limit_percent must be at least 0 and below 100, got {self.limit_percent}."
            )
        if not self.limit_s > 0:
            raise ValueError(f"limit_s must be above 0, got {self.limit_s}.")
        if not _JOB_TYPE.fullmatch(self.job_type):
            raise ValueError(
                f"job_type must be a word of small letters, as {FINETUNE}; got "
                f"{self.job_type!r:.80}."
            )

    def start(self) -> StallLiteralState:
        return StallLiteralState()

    def is_about(self, event: Sample | Pulse) -> bool:
        return isinstance(event, Sample) and fragmentation_percent(event) is not None

    def observe(
        self, state: StallLiteralState, event: Sample | Pulse
    ) -> tuple[StallLiteralState, Breach | None]:
        if isinstance(event, Sample):
            percent = fragmentation_percent(event)
            after = StallLiteralState(_UNKNOWN if percent is None else percent)
            return after, self._recovery(event) if state.is_open else None
        if not math.isfinite(event.time_s):
            return state, None
        after = _looked(state, event)
        is_stall = (
            not state.is_open
            and self.job_type == FINETUNE
            and after.percent > self.limit_percent
            and after.looked_s - after.since_s > self.limit_s
        )
        if not is_stall:
            return after, None
        return after._replace(is_open=1), self._breach(after, event)

    def _breach(self, state: StallLiteralState, pulse: Pulse) -> Breach:
        stall_s = state.looked_s - state.since_s
        return Breach(
            rule=self.RULE,
            rank=pulse.rank,
            step=pulse.step,
            phase=pulse.phase,
            statistic=stall_s,
            limit=self.limit_s,
            unit="s",
            message=f"Rank {pulse.rank} has made no step for {stall_s:.0f} s, and "
            f"{state.percent:.0f} % of the device memory that it holds is in no tensor.",
            evidence={
                "gpu_fragmentation_rate": state.percent,
                "step_stall_seconds": stall_s,
                "job_type": self.job_type,
                "limit_percent": self.limit_percent,
            },
        )

    def _recovery(self, sample: Sample) -> Breach:
        return Breach(
            rule=self.RULE,
            status=Status.RECOVERED,
            is_actionable=False,
            rank=sample.rank,
            step=sample.step,
            statistic=None,
            limit=self.limit_s,
            unit="s",
            message=f"Rank {sample.rank} makes steps again.",
        )


def _looked(state: StallLiteralState, pulse: Pulse) -> StallLiteralState:
    """Counts on, or anew after a pause, in another phase or without a process."""
    gap_s = pulse.time_s - state.looked_s
    goes_on = 0.0 <= gap_s <= _MAX_GAP_S and pulse.phase in STEP_PHASES and pulse.is_alive
    since_s = state.since_s if goes_on and state.since_s != _UNKNOWN else pulse.time_s
    return state._replace(since_s=since_s, looked_s=pulse.time_s)
