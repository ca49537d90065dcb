"""Slow gradient syncs, by the contract's literal rule."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.sample import Sample


class SyncLatencyLiteralState(NamedTuple):
    """Nothing yet."""

    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncLatencyLiteral:
    """Finds gradient syncs over a fixed limit, several times in a row."""

    RULE: ClassVar[str] = "sync_latency"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 3

    limit_ms: float = 800.0
    """Longest gradient sync, in milliseconds."""

    consecutive: int = 3
    """Longer ones in a row that make a breach, in steps."""

    def start(self) -> SyncLatencyLiteralState:
        return SyncLatencyLiteralState()

    def observe(
        self, state: SyncLatencyLiteralState, event: Sample
    ) -> tuple[SyncLatencyLiteralState, Breach | None]:
        # Settings and names are final; the rule itself follows.
        return state, None
