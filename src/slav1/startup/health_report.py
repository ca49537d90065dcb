"""What a health probe found: a report, or an error that is the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slav1.startup._expiry import as_ranges


class HealthProbeError(RuntimeError):
    """A process group does not carry data, or carries it wrongly. The same on all ranks.

    Attributes:
        group: Name of the process group.
        backend: Its backend, for example ``nccl``.
        answered: Global ranks of the group that took part, by their word in the store.
        silent: Global ranks of the group that did not.
        reason: What went wrong, in one sentence without names.
        found_by: Global rank that found it first.
    """

    def __init__(
        self,
        *,
        group: str,
        backend: str,
        answered: Sequence[int],
        silent: Sequence[int],
        reason: str,
        found_by: int,
    ) -> None:
        super().__init__(
            f"Process group '{group}' ({backend}) failed its health probe: {reason}. Ranks that "
            f"answered over the store: {as_ranges(answered)}; that did not: {as_ranges(silent)}. "
            f"Found first by rank {found_by}. {_advice(backend, silent)} The group can't be used "
            "any more: end the processes."
        )
        self.group = group
        self.backend = backend
        self.answered = tuple(answered)
        self.silent = tuple(silent)
        self.reason = reason
        self.found_by = found_by


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHealth:
    """One backend of one process group that answered rightly."""

    group: str
    """Name of the process group; ``default`` for the one of all ranks."""

    backend: str
    """For example ``gloo`` or ``nccl``."""

    device: str
    """Where the probe's tensors were, for example ``cpu`` or ``cuda:1``."""

    ranks: tuple[int, ...]
    """Global ranks of the group."""

    seconds_s: float
    """How long its two collectives took on this rank, set-up included, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """Every process group of this rank answered, and all ranks say so."""

    rank: int
    """Global rank of this process."""

    world_size: int
    """Number of ranks."""

    groups: tuple[GroupHealth, ...]
    """What was probed, oldest group first."""

    @property
    def ok(self) -> bool:
        """Always True: what is not well is raised as :class:`HealthProbeError`."""
        return True

    @property
    def is_nccl_probed(self) -> bool:
        """Whether NCCL is among what was probed."""
        return any(group.backend == "nccl" for group in self.groups)

    def __str__(self) -> str:
        probed = "; ".join(
            f"{one.group} ({one.backend} on {one.device}, ranks {as_ranges(one.ranks)}): "
            f"{one.seconds_s * 1e3:.1f} ms"
            for one in self.groups
        )
        note = "" if self.is_nccl_probed else " NCCL was not exercised: no group uses it."
        return f"Probed on rank {self.rank} of {self.world_size}: {probed}.{note}"


def _advice(backend: str, silent: Sequence[int]) -> str:
    if silent:
        return (
            "Look at the logs and stacks of the silent ranks: dead, stopped, or not at this call?"
        )
    variables = "NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
    return f"All ranks are there, so look at what lies between them (network, {variables})."
