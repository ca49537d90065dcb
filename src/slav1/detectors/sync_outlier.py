"""One rank's gradient sync far longer than the others', by the contract's literal rule."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Status
from slav1.sample import Round


class SyncOutlierLiteralState(NamedTuple):
    """The ranks that are blocked, and those with an open incident."""

    blocked: tuple[tuple[int, int], ...] = ()
    """Rank and blocked rounds in a row, for each rank blocked in the last round."""
    open_ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOutlierLiteral:
    """Finds ranks whose gradient sync takes far longer than the median.

    **It blames the wrong rank, so it is off by default.** In a synchronous collective
    every rank waits for the last one to arrive: the late rank shows the shortest sync and
    its victims the longest (0.5 ms against 401 ms with the culprit held back on purpose).
    With two ranks no sync can exceed twice the median, so it is silent. It is here because
    the contract names it; :class:`~slav1.detectors.StragglerSequential` finds the late
    rank.

    A rank is blocked in a round when its sync takes more than ``limit_ratio`` times the
    median and more than ``blocked_ms``; ``consecutive`` such rounds are a breach. It has
    recovered when its sync is under ``normal_ms`` or no longer stands out.

    Raises:
        ValueError: If a setting is out of range.
    """

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

    def __post_init__(self) -> None:
        if not self.limit_ratio > 1:
            raise ValueError(f"limit_ratio must be above 1, got {self.limit_ratio}.")
        if not 0 < self.normal_ms <= self.blocked_ms:
            raise ValueError(
                "normal_ms must be above 0 and at most blocked_ms, got "
                f"{self.normal_ms} and {self.blocked_ms}."
            )
        if self.consecutive < 1:
            raise ValueError(f"consecutive must be at least 1 round, got {self.consecutive}.")

    def start(self) -> SyncOutlierLiteralState:
        return SyncOutlierLiteralState()

    def observe(
        self, state: SyncOutlierLiteralState, event: Round
    ) -> tuple[SyncOutlierLiteralState, Breach | None]:
        syncs_ms = {
            sample.rank: sample.sync_s * 1000.0
            for sample in event.samples
            if sample.sync_s is not None and not math.isnan(sample.sync_s)
        }
        if len(syncs_ms) < 2:
            return state, None
        limit_ms = self.limit_ratio * median(syncs_ms.values())
        before = dict(state.blocked)
        blocked = {
            rank: min(before.get(rank, 0) + 1, self.consecutive)
            for rank, sync_ms in syncs_ms.items()
            if sync_ms > limit_ms and sync_ms > self.blocked_ms
        }
        after = SyncOutlierLiteralState(tuple(blocked.items()), state.open_ranks)
        return self._told(after, event.step, syncs_ms, limit_ms)

    def _told(
        self,
        state: SyncOutlierLiteralState,
        step: int,
        syncs_ms: Mapping[int, float],
        limit_ms: float,
    ) -> tuple[SyncOutlierLiteralState, Breach | None]:
        """One finding a round; what else there is waits for the next one."""
        for rank in state.open_ranks:
            sync_ms = syncs_ms.get(rank)
            if sync_ms is not None and (sync_ms < self.normal_ms or sync_ms <= limit_ms):
                still_open = tuple(each for each in state.open_ranks if each != rank)
                recovery = _finding(Status.RECOVERED, rank, step, sync_ms, limit_ms)
                return state._replace(open_ranks=still_open), recovery
        for rank, num_blocked in state.blocked:
            if num_blocked >= self.consecutive and rank not in state.open_ranks:
                breach = _finding(Status.BREACH, rank, step, syncs_ms[rank], limit_ms)
                return state._replace(open_ranks=(*state.open_ranks, rank)), breach
        return state, None


def _finding(status: Status, rank: int, step: int, sync_ms: float, limit_ms: float) -> Breach:
    is_breach = status is Status.BREACH
    verb = "is blocked in" if is_breach else "is no longer blocked in"
    return Breach(
        rule=SyncOutlierLiteral.RULE,
        status=status,
        is_actionable=is_breach,
        rank=rank,
        step=step,
        statistic=sync_ms,
        limit=limit_ms,
        unit="ms",
        message=(
            f"Rank {rank} {verb} the gradient sync of step {step}: {sync_ms:.0f} ms, limit "
            f"{limit_ms:.0f} ms. It is a victim: the late rank has the shortest sync."
        ),
    )
