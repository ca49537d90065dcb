"""What a guard says when time has run out."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

EXIT_CODE = 70
"""Exit code of a process that a guard ended (``EX_SOFTWARE`` of sysexits.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """All that is known at the moment time has run out."""

    phase: str
    """The phase that did not end."""

    waited_s: float
    """How long the rank that concluded it had waited, in seconds."""

    concluded_by: int | None
    """Rank whose time ran out first; None if it does not know its rank."""

    rank: int | None
    """This rank."""

    world_size: int | None
    """Number of ranks."""

    arrived: frozenset[int]
    """Ranks that have reached the phase."""

    left: frozenset[int] = frozenset()
    """Those of them on the concluding rank's machine whose guard has ended since."""

    address: str | None
    """Address of the store, if the launcher gave one."""

    is_store_reached: bool
    """Whether the store answered."""

    is_one_node: bool
    """Whether all ranks are known to run on this machine."""

    is_rank_taken: bool = False
    """Whether another process of this machine has the same rank."""

    @property
    def missing(self) -> frozenset[int] | None:
        """Ranks that have not reached the phase; None if that can't be known."""
        if self.world_size is None:
            return None
        return frozenset(range(self.world_size)) - self.arrived

    def text(self, stack: str) -> str:
        """The whole message, ready to print.

        Args:
            stack: Where this rank is, as Python prints it.
        """
        me = "this process" if self.rank is None else f"rank {self.rank}"
        own = "" if self.concluded_by == self.rank else f" on rank {self.concluded_by}"
        world = self.world_size or "an unknown number"
        lines = [
            f"slav1: phase '{self.phase}' had not ended after {self.waited_s:g} s{own}.",
            f"  this is:     {me} of {world}, pid {os.getpid()} on {socket.gethostname()}",
            f"  arrived:     {as_ranges(self.arrived)}{self._left_text()}",
            f"  not arrived: {self._missing_text()}",
            f"  store:       {self._store_text()}",
            f"Where {me} is (most recent call last):",
            stack.rstrip("\n"),
            "What to try:",
            *(f"  - {advice}" for advice in self._advice()),
            f"This process ends with exit code {EXIT_CODE}.",
        ]
        return "\n".join(lines) + "\n"

    def _left_text(self) -> str:
        return f" (no longer here: {as_ranges(self.left)})" if self.left else ""

    def _missing_text(self) -> str:
        if self.missing is None:
            return "unknown, because WORLD_SIZE is not set"
        if self._sees_all or not self.missing:
            return as_ranges(self.missing)
        return (
            f"{as_ranges(self.missing)} (ranks of other machines can't be seen without the store)"
        )

    @property
    def _sees_all(self) -> bool:
        return self.is_store_reached or self.is_one_node

    def _store_text(self) -> str:
        if self.address is None:
            return "no address: MASTER_ADDR and MASTER_PORT are not set"
        if self.is_store_reached:
            return f"{self.address} reached"
        if 0 in self.arrived:
            return f"{self.address} does not answer: look at its host, usually rank 0"
        return f"{self.address} could not be reached: its usual host, rank 0, has not arrived"

    def _advice(self) -> Iterable[str]:
        if self.is_rank_taken:
            yield (
                f"Another process of this machine is rank {self.rank} too: look for one that "
                "was left over, or for two that were started with the same RANK."
            )
        if self.missing:
            yield (
                f"Read the logs of rank {as_ranges(self.missing)}: not started, still busy "
                "before this point, ended, or without this guard?"
            )
        if self.left:
            yield (
                f"Rank {as_ranges(self.left)} was here and is not any more: its process ended, "
                "see its log, or it got through alone."
            )
        if self.address is not None and not self.is_store_reached and self.rank != 0:
            yield (
                f"If rank 0 does run: is {self.address} its address, the same on all ranks, "
                "and does a firewall let it through?"
            )
        if self.missing is None:
            yield (
                "If this is one of several ranks, start them with a launcher that sets RANK and "
                "WORLD_SIZE, as torchrun does."
            )
        elif not self.missing and not self.left:
            yield (
                "All ranks are here, so the ranks do not reach each other or one is stuck: "
                "compare their stacks; check GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME; set "
                "NCCL_DEBUG=INFO."
            )
        yield (
            f"If the phase is only slow, give it more: enforce_timeout_guard('{self.phase}', ...)."
        )


def as_ranges(ranks: Iterable[int]) -> str:
    """Rank numbers in few words: ``0-5, 7``; ``none`` if there are none.

    Example:
        >>> as_ranges([3, 0, 1, 2, 7])
        '0-3, 7'
    """
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    texts = (str(low) if low == high else f"{low}-{high}" for low, high in parts)
    return ", ".join(texts) or "none"


def stack_of(thread_id: int) -> str:
    """Where a thread of this process is, as Python prints it."""
    frame = sys._current_frames().get(thread_id)
    if frame is None:
        return "  (the thread that set the guard has ended)"
    return "".join(traceback.format_stack(frame))
