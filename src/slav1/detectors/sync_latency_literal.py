"""Slow gradient syncs, by the contract's literal rule."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.detectors._sync import LimitRun, check_limit, over_limit, recovery_from
from slav1.sample import Sample


class SyncLatencyLiteralState(NamedTuple):
    """The syncs over the limit in a row."""

    run: LimitRun = LimitRun()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncLatencyLiteral:
    """Finds gradient syncs over a fixed limit, several times in a row.

    Any sync at or under the limit starts the count again. The rank named is the one that
    waited; in a synchronous collective that is hardly ever the one at fault.

    Raises:
        ValueError: If a setting is out of range.
    """

    RULE: ClassVar[str] = "sync_latency"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 3

    limit_ms: float = 800.0
    """Longest gradient sync, in milliseconds."""

    consecutive: int = 3
    """Longer ones in a row that make a breach, in steps."""

    def __post_init__(self) -> None:
        check_limit(self.limit_ms, self.consecutive)

    def start(self) -> SyncLatencyLiteralState:
        return SyncLatencyLiteralState()

    def observe(
        self, state: SyncLatencyLiteralState, event: Sample
    ) -> tuple[SyncLatencyLiteralState, Breach | None]:
        run, breach = over_limit(state.run, event, self.limit_ms, self.consecutive)
        if state.run.is_open and not run.is_open:
            breach = recovery_from(event, self.limit_ms)
        return SyncLatencyLiteralState(run), breach
