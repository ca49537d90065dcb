"""Ranks that are gone, stopped, or miss heartbeats."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Fact, Status
from slav1.detectors._beats import STOPPED, BeatClock, ticked
from slav1.detectors._ecusum import ecusum, ecusum_limit
from slav1.phase import Phase
from slav1.sample import Pulse

# Answered beats in a row that end an incident of missed ones.
NUM_RECOVERY_BEATS = 60


class LivenessSequentialState(NamedTuple):
    """What is wrong with the rank, and the evidence of its heartbeats."""

    trouble: str = ""
    """The open incident: empty, ``missed_beats``, ``stopped`` or ``gone``."""
    is_stopped: bool = False
    stopped_at_s: float = 0.0
    clock: BeatClock = BeatClock()
    scores: tuple[float, ...] = ()
    num_answered: int = 0
    """Answered beats in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessSequential:
    """Finds dead and stopped processes and ranks that miss too many heartbeats.

    A process that is gone without a goodbye is a fact, and to be acted on. A stopped one
    (SIGSTOP, a debugger) and one that misses too many of its beats, one a second, are
    only logged: they may come back.

    Raises:
        ValueError: If a setting is out of range.

    Source:
        Shin, Ramdas, Rinaldo, "E-detectors: a nonparametric framework for sequential
        change detection", New England Journal of Statistics in Data Science 2(2), 2023.
    """

    RULE: ClassVar[str] = "liveness"
    VARIANT: ClassVar[str] = "sequential"
    WATCHES: ClassVar[tuple[type, ...]] = (Pulse,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

    stopped_limit_s: float = 3.0
    """How long a process may be stopped before it is reported, in seconds."""

    miss_ratio: float = 5e-4
    """Share of beats that a healthy rank may miss."""

    bad_miss_ratio: float = 5e-3
    """Share of missed beats to find."""

    arl0: float = 1e6
    """Healthy beats between two false alarms, one beat a second."""

    def __post_init__(self) -> None:
        if not self.stopped_limit_s > 0:
            raise ValueError(
                f"stopped_limit_s must be above 0 seconds, got {self.stopped_limit_s}."
            )
        if not 0 < self.miss_ratio < self.bad_miss_ratio < 1:
            raise ValueError(
                "miss_ratio and bad_miss_ratio must lie between 0 and 1, in this order, got "
                f"{self.miss_ratio} and {self.bad_miss_ratio}."
            )
        if not self.arl0 >= 100:
            raise ValueError(f"arl0 must be at least 100 beats, got {self.arl0}.")

    def start(self) -> LivenessSequentialState:
        return LivenessSequentialState()

    def observe(
        self, state: LivenessSequentialState, event: Pulse
    ) -> tuple[LivenessSequentialState, Breach | None]:
        if event.phase is Phase.DONE or not math.isfinite(event.time_s):
            return state, None
        if not event.is_alive:
            after = LivenessSequentialState(trouble="gone")
            return after, None if state.trouble == "gone" else self._gone(event)
        if state.trouble == "gone":
            return LivenessSequentialState(), self._recovery(event)
        if event.process_state in STOPPED:
            return self._watch_stop(state, event)
        if state.trouble == "stopped":
            return LivenessSequentialState(), self._recovery(event)
        return self._watch_beats(
            state._replace(is_stopped=False) if state.is_stopped else state, event
        )

    def _watch_stop(
        self, state: LivenessSequentialState, event: Pulse
    ) -> tuple[LivenessSequentialState, Breach | None]:
        if not state.is_stopped:
            state = state._replace(is_stopped=True, stopped_at_s=event.time_s)
        stopped_s = event.time_s - state.stopped_at_s
        if stopped_s > self.stopped_limit_s and state.trouble != "stopped":
            return state._replace(trouble="stopped"), self._stopped(event, stopped_s)
        if state.trouble == "stopped":
            return state, None
        return self._watch_beats(state, event)

    def _watch_beats(
        self, state: LivenessSequentialState, event: Pulse
    ) -> tuple[LivenessSequentialState, Breach | None]:
        clock, share = ticked(state.clock, event)
        state = state._replace(clock=clock)
        if share is None:
            return state, None
        is_missed = share == 0.0
        scores = ecusum(
            state.scores, is_missed, null_ratio=self.miss_ratio, ratios=(self.bad_miss_ratio,)
        )
        limit = ecusum_limit(arl0=self.arl0, num_tests=1)
        num_answered = 0 if is_missed else min(state.num_answered + 1, NUM_RECOVERY_BEATS)
        state = state._replace(scores=scores, num_answered=num_answered)
        if max(scores) >= limit:
            is_known = state.trouble == "missed_beats"
            after = state._replace(scores=(), trouble="missed_beats")
            return after, None if is_known else self._missed(event, max(scores), limit)
        if state.trouble and num_answered >= NUM_RECOVERY_BEATS:
            return state._replace(trouble=""), self._recovery(event)
        return state, None

    def _gone(self, pulse: Pulse) -> Breach:
        reason = pulse.exit_reason or "it did not say why"
        text = f"The process of rank {pulse.rank} is gone without a goodbye: {reason}."
        return _finding(pulse, "gone", text)

    def _stopped(self, pulse: Pulse, stopped_s: float) -> Breach:
        return _finding(
            pulse,
            "stopped",
            f"The process of rank {pulse.rank} has been stopped for {stopped_s:.1f} s.",
            is_actionable=False,
            statistic=stopped_s,
            limit=self.stopped_limit_s,
            unit="s",
        )

    def _missed(self, pulse: Pulse, score: float, limit: float) -> Breach:
        return _finding(
            pulse,
            "missed_beats",
            f"Rank {pulse.rank} misses more than {self.miss_ratio:.2%} of its heartbeats.",
            is_actionable=False,
            statistic=score,
            limit=limit,
            unit="e-CUSUM score",
            arl0=self.arl0,
        )

    def _recovery(self, pulse: Pulse) -> Breach:
        text = f"Rank {pulse.rank} answers again."
        return _finding(pulse, "recovery", text, status=Status.RECOVERED, is_actionable=False)


def _finding(
    pulse: Pulse,
    kind: str,
    message: str,
    *,
    status: Status = Status.BREACH,
    is_actionable: bool = True,
    statistic: float | None = None,
    limit: float | None = None,
    unit: str = "process",
    arl0: float | None = None,
) -> Breach:
    evidence: dict[str, Fact] = {
        "kind": kind,
        "process_state": pulse.process_state,
        "exit_reason": pulse.exit_reason,
        "seconds_since_progress": pulse.since_progress_s,
    }
    return Breach(
        rule=LivenessSequential.RULE,
        status=status,
        is_actionable=is_actionable,
        rank=pulse.rank,
        step=pulse.step,
        phase=pulse.phase,
        statistic=statistic,
        limit=limit,
        unit=unit,
        arl0=arl0,
        message=message,
        evidence=evidence,
    )
