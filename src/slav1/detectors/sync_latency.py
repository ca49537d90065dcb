"""Slow gradient syncs, by the fixed limit and by a learned one."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.detectors._cusum import HEAVY_TAIL_RATIO, cusum, cusum_limit
from slav1.detectors._sync import RULE, LimitRun, check_limit, over_limit, recovery_from
from slav1.detectors._trend import CLIP_SIGMAS, Trend, begun, followed, residual
from slav1.sample import Sample

NUM_NEEDED = 100
DRIFT = 1.0
# Smallest noise of the logarithm of a sync to believe.
MIN_LOG_NOISE = 0.05
# Shortest sync that is told apart, in seconds; under it a clock's own noise decides.
SHORTEST_S = 1e-5
# Syncs that the present length is averaged over.
PRESENT_GAIN = 0.1


class SyncLatencyLearnedState(NamedTuple):
    """The syncs over the fixed limit, the usual sync, and the evidence against it."""

    run: LimitRun = LimitRun()
    usual: Trend = Trend()
    """Of the logarithm of seconds; stands still during an incident."""
    score: float = 0.0
    present: float = 0.0
    """Present length: mean logarithm of seconds of about the last ten."""
    is_slow: bool = False
    """Whether an incident of the learned limit is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncLatencyLearned:
    """Finds gradient syncs over a fixed limit, and lasting slowdowns against the usual ones.

    The fixed limit is the contract's. The learned one is a CUSUM of the pre-whitened
    logarithm of the sync; it is only logged, and only where the syncs of the last steps
    took ``min_slowdown_ratio`` times as long as usual and ``min_excess_ms`` longer.
    Warm-up samples are neither judged nor learned from.

    Raises:
        ValueError: If a setting is out of range.

    Source:
        Page, "Continuous Inspection Schemes", Biometrika 41, 1954.
    """

    RULE: ClassVar[str] = RULE
    VARIANT: ClassVar[str] = "learned"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = NUM_NEEDED

    limit_ms: float = 800.0
    """Longest gradient sync, in milliseconds."""

    consecutive: int = 3
    """Longer ones in a row that make a breach, in steps."""

    arl0: float = 1e6
    """Healthy steps between two false alarms of the learned limit, in steps."""

    min_slowdown_ratio: float = 1.5
    """Smallest lasting slowdown worth a word, as a ratio to the usual sync."""

    min_excess_ms: float = 5.0
    """Smallest lasting slowdown worth a word, in milliseconds."""

    def __post_init__(self) -> None:
        check_limit(self.limit_ms, self.consecutive)
        if not self.arl0 >= 100:
            raise ValueError(f"arl0 must be at least 100 steps, got {self.arl0}.")
        if not self.min_slowdown_ratio >= 1:
            raise ValueError(
                f"min_slowdown_ratio must be at least 1, got {self.min_slowdown_ratio}: a "
                "faster sync is not a slowdown."
            )
        if not self.min_excess_ms >= 0:
            raise ValueError(f"min_excess_ms must be at least 0, got {self.min_excess_ms}.")

    def start(self) -> SyncLatencyLearnedState:
        return SyncLatencyLearnedState()

    def observe(
        self, state: SyncLatencyLearnedState, event: Sample
    ) -> tuple[SyncLatencyLearnedState, Breach | None]:
        if event.is_warmup or event.sync_s is None or not math.isfinite(event.sync_s):
            return state, None
        run, breach = over_limit(state.run, event, self.limit_ms, self.consecutive)
        after, learned = self._learned(state, run, event, event.sync_s)
        breach = breach or learned
        was_open, is_open = _is_open(state), _is_open(after)
        if was_open and not is_open and breach is None:
            breach = recovery_from(event, self.limit_ms)
        return after, breach

    def _learned(
        self, state: SyncLatencyLearnedState, run: LimitRun, event: Sample, sync_s: float
    ) -> tuple[SyncLatencyLearnedState, Breach | None]:
        log_s = math.log(max(sync_s, SHORTEST_S))
        if state.usual.num_seen == 0:
            return state._replace(run=run, usual=begun(log_s), present=log_s), None
        present = state.present + PRESENT_GAIN * (log_s - state.present)
        if state.is_slow:
            state = state._replace(run=run, present=present)
            return state._replace(is_slow=self._is_slower(state, share=0.5)), None
        seen = residual(state.usual, log_s, min_scale=MIN_LOG_NOISE)
        usual = followed(state.usual, log_s, seen, is_skipped=False)
        usual = Trend(usual.num_seen, usual.level, 0.0, *usual[3:])
        limit = cusum_limit(drift=DRIFT, arl0=HEAVY_TAIL_RATIO * self.arl0)
        score = cusum(state.score, seen.white, drift=DRIFT, clip=CLIP_SIGMAS)
        if usual.num_seen <= NUM_NEEDED:
            return SyncLatencyLearnedState(run, usual, state.score, present), None
        if score >= limit:
            slow = state._replace(run=run, present=present, score=0.0, is_slow=True)
            if self._is_slower(slow, share=1.0):
                return slow, self._breach(slow, event, score, limit)
        # Certain, but not yet by enough: the score waits at its limit for the effect.
        return SyncLatencyLearnedState(run, usual, min(score, limit), present), None

    def _is_slower(self, state: SyncLatencyLearnedState, *, share: float) -> bool:
        """Whether the present syncs are longer by a share of what is worth a word."""
        usual_s, present_s = math.exp(state.usual.level), math.exp(state.present)
        is_longer = state.present - state.usual.level >= share * math.log(self.min_slowdown_ratio)
        return is_longer and (present_s - usual_s) * 1000.0 >= share * self.min_excess_ms

    def _breach(
        self, state: SyncLatencyLearnedState, event: Sample, score: float, limit: float
    ) -> Breach:
        usual_ms = math.exp(state.usual.level) * 1000.0
        present_ms = math.exp(state.present) * 1000.0
        return Breach(
            rule=RULE,
            is_actionable=False,
            rank=event.rank,
            step=event.step,
            statistic=score,
            limit=limit,
            unit="CUSUM score",
            arl0=self.arl0,
            message=(
                f"The gradient syncs of rank {event.rank} take {present_ms:.1f} ms by step "
                f"{event.step}, usually {usual_ms:.1f} ms. The rank that waits is not the one "
                "that is late."
            ),
            evidence={"kind": "learned", "usual_ms": usual_ms, "present_ms": present_ms},
        )


def _is_open(state: SyncLatencyLearnedState) -> bool:
    return state.run.is_open or state.is_slow
