"""The contract's fixed limit on gradient syncs, shared by both forms of the rule."""

from typing import NamedTuple

from slav1.breach import Breach, Status
from slav1.sample import Sample

RULE = "sync_latency"


class LimitRun(NamedTuple):
    """Syncs over the limit in a row."""

    num_over: int = 0
    is_open: bool = False
    """Whether they have been enough for a breach."""


_NONE_OVER = LimitRun()


def check_limit(limit_ms: float, consecutive: int) -> None:
    """Raises ``ValueError`` for a limit that cannot be one."""
    if not limit_ms > 0:
        raise ValueError(f"limit_ms must be above 0 milliseconds, got {limit_ms}.")
    if consecutive < 1:
        raise ValueError(f"consecutive must be at least 1 step, got {consecutive}.")


def over_limit(
    run: LimitRun, sample: Sample, limit_ms: float, consecutive: int
) -> tuple[LimitRun, Breach | None]:
    """Counts one sync; a breach when there are enough over the limit in a row.

    A sync that was not measured, or is not a number, counts neither way.
    """
    if sample.sync_s is None or sample.sync_s != sample.sync_s:
        return run, None
    sync_ms = sample.sync_s * 1000.0
    if sync_ms <= limit_ms:
        return _NONE_OVER, None
    num_over = min(run.num_over + 1, consecutive)
    after = LimitRun(num_over, is_open=num_over >= consecutive)
    if run.is_open or not after.is_open:
        return after, None
    return after, Breach(
        rule=RULE,
        rank=sample.rank,
        step=sample.step,
        statistic=sync_ms,
        limit=limit_ms,
        unit="ms",
        message=(
            f"Rank {sample.rank} waited {sync_ms:.0f} ms for the gradient sync of step "
            f"{sample.step}, the time {consecutive} in a row over {limit_ms:.0f} ms. The rank "
            "that waits is not the one that is late."
        ),
        evidence={"kind": "limit", "consecutive": consecutive},
    )


def recovery_from(sample: Sample, limit_ms: float) -> Breach:
    """The end of an incident."""
    sync_ms = None if sample.sync_s is None else sample.sync_s * 1000.0
    took = "unknown time" if sync_ms is None else f"{sync_ms:.0f} ms"
    return Breach(
        rule=RULE,
        status=Status.RECOVERED,
        is_actionable=False,
        rank=sample.rank,
        step=sample.step,
        statistic=sync_ms,
        limit=limit_ms,
        unit="ms",
        message=f"The gradient sync of rank {sample.rank} took {took} in step {sample.step} again.",
    )
