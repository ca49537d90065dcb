"""The figures of a run that is over, or going on, from its folder alone."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchmetrics import Metric, MetricCollection

from slav1.coordinator.recovery import unfinished_fault
from slav1.ledger import Entry, read_ledger
from slav1.metrics.loss_variance import LossVariance
from slav1.metrics.memory_slope import MemorySlope
from slav1.metrics.rank import feed
from slav1.metrics.rates import Availability, CheckpointSuccess
from slav1.metrics.sync_latency import SyncLatency
from slav1.metrics.useful_time import UsefulTimeRatio
from slav1.recorder import read_ring_file
from slav1.saves import save_in
from slav1.verdict import RECOVERY_RULE

_HALTS = ("hang", "liveness")
_Span = tuple[int, int]


def of_run(run_dir: Path | str) -> MetricCollection:
    """Returns the figures of a run, already fed.

    From the ledger, over all starts of the run: ``availability``, a beat being a second, in time
    unless a ``hang`` or ``liveness`` incident was open; ``checkpoint_success``;
    ``useful_time_ratio``, where what is lost are those seconds and every recovery, from the
    fault to the first new step. Start-up and saves that training waits for count as useful
    there, since the ledger has no times of steps.

    From the flight rings, the last steps of each rank: ``sync_latency_p99_s``,
    ``loss_variance``, ``memory_slope_mib``; the slope is the largest of all ranks. They are NaN
    while no ring is saved.

    Args:
        run_dir: A run folder, or the folder that holds runs; then the newest one is taken.

    Raises:
        FileNotFoundError: If there is no ledger.
        BlockVersionError: If a ring was saved by another version.
    """
    folder = _find_run(Path(run_dir))
    entries = read_ledger(folder / "ledger.jsonl")
    metrics: dict[str, Any] = {**_of_ledger(entries), **_of_rings(folder)}
    return MetricCollection(metrics, compute_groups=False)


def _find_run(path: Path) -> Path:
    if (path / "ledger.jsonl").is_file():
        return path
    ledgers = [ledger for ledger in path.glob("*/ledger.jsonl") if ledger.is_file()]
    if not ledgers:
        raise FileNotFoundError(
            f"Neither {path} nor a folder in it holds a ledger.jsonl; give a run folder, or the "
            "one that holds it."
        )
    return max(ledgers, key=lambda ledger: ledger.stat().st_mtime_ns).parent


def _of_ledger(entries: Sequence[Entry]) -> dict[str, Metric]:
    available, saves, useful = Availability(), CheckpointSuccess(), UsefulTimeRatio()
    for entry in entries:
        save = save_in(entry.kind, entry.step, entry.evidence, time_s=entry.time_ns * 1e-9)
        if save is not None:
            saves.update(save)
    if entries:
        wall_s = (entries[-1].time_ns - entries[0].time_ns) * 1e-9
        halts = list(_halts(entries))
        num_beats = max(1, round(wall_s))
        num_missed = min(num_beats, math.ceil(_length_s(halts)))
        available.update(num_beats - num_missed, num_beats)
        lost_s = _length_s([*halts, *_recoveries(entries)])
        useful.update(max(0.0, wall_s - lost_s), wall_s)
    return {"availability": available, "checkpoint_success": saves, "useful_time_ratio": useful}


def _of_rings(folder: Path) -> dict[str, Metric]:
    latency, variance, slopes = SyncLatency(), LossVariance(), [MemorySlope()]
    for path in sorted(folder.glob("ring-*.bin")):
        # A step that was made twice counts as it was the last time.
        last = {sample.step: sample for sample in read_ring_file(path)}
        rank_variance, slope = LossVariance(), MemorySlope()
        feed([last[step] for step in sorted(last)], latency, rank_variance, slope)
        variance.merge_state(rank_variance)
        slopes.append(slope)
    known = [slope for slope in slopes[1:] if not slope.compute().isnan()]
    worst = max(known, key=lambda slope: slope.compute().item(), default=slopes[0])
    return {"sync_latency_p99_s": latency, "loss_variance": variance, "memory_slope_mib": worst}


def _halts(entries: Sequence[Entry]) -> Iterator[_Span]:
    """When some rank made no progress, in nanoseconds."""
    begun: dict[tuple[str | None, int | None], int] = {}
    for entry in entries:
        key = (entry.rule, entry.rank)
        if entry.kind == "incident_begin" and entry.rule in _HALTS:
            silent_s = entry.evidence.get("seconds_since_progress")
            silent_ns = int(silent_s * 1e9) if isinstance(silent_s, int | float) else 0
            begun.setdefault(key, entry.time_ns - silent_ns)
        elif entry.kind == "incident_end" and key in begun:
            yield begun.pop(key), entry.time_ns
        elif entry.kind == "start":
            # What was open when the last start ended is over now.
            yield from ((since, entry.time_ns) for since in begun.values())
            begun.clear()
    yield from ((since, entries[-1].time_ns) for since in begun.values())


def _recoveries(entries: Sequence[Entry]) -> Iterator[_Span]:
    """From each fault to the first new step, in nanoseconds."""
    for entry in entries:
        seconds = entry.evidence.get("seconds")
        if entry.rule == RECOVERY_RULE and isinstance(seconds, int | float):
            yield entry.time_ns - int(seconds * 1e9), entry.time_ns
    fault = unfinished_fault(entries)
    if fault is not None:
        yield fault.began_ns, entries[-1].time_ns


def _length_s(spans: Sequence[_Span]) -> float:
    """Length of the union, in seconds."""
    total_ns, upto_ns = 0, 0
    for began_ns, ended_ns in sorted(spans):
        total_ns += max(0, ended_ns - max(began_ns, upto_ns))
        upto_ns = max(upto_ns, ended_ns)
    return total_ns * 1e-9
