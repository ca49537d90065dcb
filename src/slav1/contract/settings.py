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
    """How checkpoints are written, verified, kept and gone back to.

    Raises:
        ValueError: If a setting is out of range.
    """

    keep: int = 3
    """Verified checkpoints to keep, newest first; at least 1."""

    verify: Literal["none", "bytes", "medium", "content"] = "medium"
    """How much of a checkpoint is read back before it counts as good."""

    quorum: Literal["majority", "all"] = "majority"
    """How many replicated copies must be good before a checkpoint counts."""

    digest: Literal["xxh3", "sha256"] = "xxh3"
    """Digest of every file: ``xxh3`` finds damage, ``sha256`` is one that can be signed."""

    max_failed_saves: int = 3
    """Saves that may fail in a row before training stops, 1 to 1000."""

    max_attempts: int = 2
    """How often the same checkpoint is resumed from without a newer one being committed,
    before it is passed over; 1 to 1000."""

    max_rollbacks: int = 3
    """Rollbacks within ``rollback_window_steps``, over all starts of the run; one more
    stops training instead. 0 to 1000; 0 allows none."""

    rollback_window_steps: int = 1000
    """Steps over which rollbacks are counted, 1 to 1000000000."""

    background: bool = False
    """Whether a checkpoint is written while training goes on, from a copy in memory."""

    every_steps: int | None = None
    """Steps between two checkpoints of our own in the run folder, at least 1; None leaves
    them to the host."""

    max_snapshots: int = 3
    """Snapshots of a doubtful state that one start of a run writes, 0 to 1000; they are for
    people to look at, and never resumed from."""

    limit_s: float = 1800.0
    """How long a rank waits for the others in a save, in seconds, above 0, at most 86400."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep must be at least 1, got {self.keep}.")
        _check_range("max_failed_saves", self.max_failed_saves, 1, 1000)
        _check_range("max_attempts", self.max_attempts, 1, 1000)
        _check_range("max_snapshots", self.max_snapshots, 0, 1000)
        _check_range("max_rollbacks", self.max_rollbacks, 0, 1000)
        _check_range("rollback_window_steps", self.rollback_window_steps, 1, 1_000_000_000)
        if self.every_steps is not None and self.every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, got {self.every_steps}.")
        if not 0 < self.limit_s <= 86400:
            raise ValueError(f"limit_s must be above 0 and at most 86400, got {self.limit_s}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedSettings:
    """What is done about seeds and random numbers.

    Raises:
        ValueError: If a setting is out of range, or they contradict each other.
    """

    mode: Literal["check", "set", "off"] = "check"
    """``check`` looks at all ranks and changes no random number; ``set`` gives all ranks one
    seed for the first weights and each rank numbers of its own afterwards; ``off`` does not
    look."""

    seed: int | None = None
    """Global seed, 0 to 4294967295; needs ``set``. None takes the script's own, else
    ``SLA_SEED``, else one is made."""

    groups: tuple[tuple[int, ...], ...] = ()
    """Ranks that must draw the same numbers, as those that share one model by tensor
    parallelism; each rank in one group at most."""

    deterministic: bool = False
    """Whether the settings that let a step give the same bits twice are owed: a missing one
    is a breach. They are looked at, not set."""

    probe: bool = False
    """Whether forward and backward of the first micro-batch are run again, twice, and owe the
    same bits; needs ``check`` or ``set``."""

    def __post_init__(self) -> None:
        if self.probe and self.mode == "off":
            raise ValueError("probe needs mode: check or set; mode is off.")
        if self.seed is not None:
            _check_range("seed", self.seed, 0, (1 << 32) - 1)
            if self.mode != "set":
                raise ValueError(f"seed needs mode: set; mode is {self.mode}.")
        ranks = [rank for group in self.groups for rank in group]
        if any(rank < 0 for rank in ranks) or len(set(ranks)) < len(ranks):
            raise ValueError(
                "groups must hold ranks from 0 on, each at most once, got "
                f"{[list(group) for group in self.groups]}."
            )
        if not all(self.groups):
            raise ValueError("groups must hold no empty group.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSettings:
    """What is read from the reduced gradient before each update, and done to it.

    Raises:
        ValueError: If a setting is out of range.
    """

    norm: bool = True
    """Whether its L2 norm is read."""

    norm_every: int = 0
    """Steps between two norms, at most 10000; 0 chooses as often as costs about 30
    microseconds a step on processors, and 10 on a GPU."""

    zero_share_every: int = 10
    """Steps between two counts of how many of its elements are 0, at most 10000; 0 for
    none."""

    clip: Literal["off", "adaptive"] = "off"
    """``adaptive`` shortens a gradient whose norm stands out from the recent ones, before
    any clipping of the host's own."""

    clip_sigmas: float = 2.5
    """How far a norm must stand out to be shortened, in standard deviations, 1 to 1000."""

    clip_memory: float = 0.97
    """How much of the mean norm each norm leaves in place, 0.5 to 0.9999."""

    decay: float = 0.5
    """What ``clip_and_decay`` multiplies learning rates with, above 0, at most 1."""

    min_decay: float = 0.1
    """Least that repeated decays multiply with, above 0, at most ``decay``."""

    decay_steps: int = 200
    """Steps for which ``clip_and_decay`` lasts, 1 to 1000000."""

    def __post_init__(self) -> None:
        _check_range("norm_every", self.norm_every, 0, 10_000)
        _check_range("zero_share_every", self.zero_share_every, 0, 10_000)
        _check_range("clip_sigmas", self.clip_sigmas, 1, 1000)
        _check_range("clip_memory", self.clip_memory, 0.5, 0.9999)
        _check_range("decay_steps", self.decay_steps, 1, 1_000_000)
        if not 0 < self.min_decay <= self.decay <= 1:
            raise ValueError(
                "min_decay and decay must be above 0, at most 1 and in this order, got "
                f"{self.min_decay} and {self.decay}."
            )


def _check_range(name: str, value: float, lowest: float, highest: float) -> None:
    if not lowest <= value <= highest:
        raise ValueError(f"{name} must be {lowest} to {highest}, got {value}.")
