"""Slow gradient syncs, by the fixed limit and a learned one."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.sample import Sample


class SyncLatencyLearnedState(NamedTuple):
    """Nothing yet."""

    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncLatencyLearned:
    """Finds gradient syncs over a fixed limit, and lasting slowdowns against the usual ones."""

    RULE: ClassVar[str] = "sync_latency"
    VARIANT: ClassVar[str] = "learned"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 100

    limit_ms: float = 800.0
    """Longest gradient sync, in milliseconds."""

    consecutive: int = 3
    """Longer ones in a row that make a breach, in steps."""

    arl0: float = 1e6
    """Healthy steps between two false alarms of the learned limit, in steps."""

    min_slowdown_ratio: float = 1.5
    """Smallest lasting slowdown worth a word, as a ratio to the usual sync."""

    def start(self) -> SyncLatencyLearnedState:
        return SyncLatencyLearnedState()

    def observe(
        self, state: SyncLatencyLearnedState, event: Sample
    ) -> tuple[SyncLatencyLearnedState, Breach | None]:
        # Settings and names are final; the rule itself follows.
        return state, None
