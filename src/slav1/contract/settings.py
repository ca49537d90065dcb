"""Settings of a contract that belong to no rule."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """How each node watches its ranks.

    Raises:
        ValueError: If a setting is out of range.
    """

    kind: Literal["process", "thread", "off"] = "process"
    """``process`` watches from outside; ``thread`` is for places where child processes
    are forbidden and is blind while the trainer holds the interpreter lock; ``off``
    watches nothing."""

    port: int = 0
    """TCP port of the coordinator, 0 to 65535; 0 takes any that is free."""

    tick_s: float = 0.05
    """Time between two looks at the ranks, in seconds, above 0 and at most 1."""

    grace_s: float = 5.0
    """Time from SIGTERM to SIGKILL when a process must be ended, in seconds, 0 to 600."""

    ring_slots: int = 4096
    """Steps that the flight ring of a rank holds, 16 to 1048576."""

    stacks: bool = True
    """Whether the stacks of a hanging rank are written down."""

    def __post_init__(self) -> None:
        _check_range("port", self.port, 0, 65535)
        _check_range("grace_s", self.grace_s, 0, 600)
        _check_range("ring_slots", self.ring_slots, 16, 1 << 20)
        if not 0 < self.tick_s <= 1:
            raise ValueError(f"tick_s must be above 0 and at most 1, got {self.tick_s}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """How checkpoints are kept and verified.

    Checked now and written into ``contract.yaml``; this version has nothing yet that
    writes or verifies checkpoints.

    Raises:
        ValueError: If a setting is out of range.
    """

    keep: int = 3
    """Verified checkpoints to keep, newest first; at least 1."""

    verify: Literal["none", "bytes", "medium", "content"] = "medium"
    """How much of a checkpoint is read back before it counts as good."""

    quorum: Literal["majority", "all"] = "majority"
    """How many replicated copies must be good before a checkpoint counts."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep must be at least 1, got {self.keep}.")


def _check_range(name: str, value: float, lowest: float, highest: float) -> None:
    if not lowest <= value <= highest:
        raise ValueError(f"{name} must be {lowest} to {highest}, got {value}.")
