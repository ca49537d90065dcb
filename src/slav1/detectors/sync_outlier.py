"""One rank's gradient sync far longer than the others', by the contract's literal rule."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.sample import Round


class SyncOutlierLiteralState(NamedTuple):
    """Nothing yet."""

    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOutlierLiteral:
    """Finds ranks whose gradient sync takes far longer than the median. Off by default: it blames the wrong rank."""

    RULE: ClassVar[str] = "sync_outlier"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Round,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 3

    limit_ratio: float = 3.0
    """Longest sync of one rank, as a ratio to the median of all ranks."""

    normal_ms: float = 15.0
    """Syncs under this are normal, in milliseconds."""

    blocked_ms: float = 50.0
    """Syncs over this are blocked, in milliseconds."""

    consecutive: int = 3
    """Blocked rounds in a row that make a breach."""

    def start(self) -> SyncOutlierLiteralState:
        return SyncOutlierLiteralState()

    def observe(
        self, state: SyncOutlierLiteralState, event: Round
    ) -> tuple[SyncOutlierLiteralState, Breach | None]:
        # Settings and names are final; the rule itself follows.
        return state, None
