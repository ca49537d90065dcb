"""The disk that a watched loop's checkpoints go to."""

from sla_accelerate.telemetry import LoopWatch
from slav1.checkpoint import Disk


def disk_of(watch: LoopWatch) -> Disk | None:
    """A disk that does to checkpoints what is planned for this rank; None for an ordinary one."""
    faults = watch.faults
    if faults is None:
        return None
    return Disk(after_flush=lambda path: faults.checkpoint(path, watch.step))
