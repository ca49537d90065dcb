"""Where the ranks of a job meet, as their launcher says."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

CONNECT_S = 0.5
"""Longest wait for the store's machine to take a connection, in seconds."""

ANSWER_S = 1.0
"""Longest wait for an answer of the store, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Rank, world and address of this process, as far as they are known."""

    rank: int | None
    """Global rank."""

    world_size: int | None
    """Number of ranks."""

    host: str | None
    """Machine of the store."""

    port: int | None
    """TCP port of the store."""

    attempt: str
    """Tells one attempt of one job from the others at the same address."""

    is_one_node: bool
    """Whether all ranks are known to run on this machine."""

    @classmethod
    def read(
        cls,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Rendezvous:
        """Reads the variables that launchers set.

        Args:
            rank: Global rank, where the caller knows it; wins over ``RANK``.
            world_size: Number of ranks; wins over ``WORLD_SIZE``.
            environment: Variables; those of this process if None.
        """
        known = os.environ if environment is None else environment
        world_size = _whole(known, "WORLD_SIZE") if world_size is None else world_size
        run, restarts = known.get("TORCHELASTIC_RUN_ID"), known.get("TORCHELASTIC_RESTART_COUNT")
        return cls(
            rank=_whole(known, "RANK") if rank is None else rank,
            world_size=world_size,
            host=known.get("MASTER_ADDR") or None,
            port=_whole(known, "MASTER_PORT"),
            attempt=f"{run or 'job'}/{restarts or 0}",
            is_one_node=world_size is not None
            and world_size in (1, _whole(known, "LOCAL_WORLD_SIZE")),
        )

    @property
    def address(self) -> str | None:
        """The store's address for people; None if it is not known."""
        return None if self.host is None or self.port is None else f"{self.host}:{self.port}"

    def connect(self) -> Any | None:
        """A client of the job's store, or None while there is no store to reach.

        Raises:
            RuntimeError: If the store took the connection and then did not answer.
        """
        # A store needs torch, but a guard must not be what imports it.
        store = getattr(sys.modules.get("torch.distributed"), "TCPStore", None)
        if store is None or self.host is None or self.port is None or not self._is_listening():
            return None
        return store(
            self.host,
            self.port,
            is_master=False,
            timeout=timedelta(seconds=ANSWER_S),
            wait_for_workers=False,
        )

    def _is_listening(self) -> bool:
        # The store's own client retries for long and fills stderr with warnings meanwhile.
        try:
            with socket.create_connection((self.host, self.port), CONNECT_S):
                return True
        except OSError:
            return False


def _whole(known: Mapping[str, str], name: str) -> int | None:
    # What is no number is refused by torch itself, with a better text than ours.
    text = known.get(name, "")
    return int(text) if text.isdecimal() else None
