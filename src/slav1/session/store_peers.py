"""How ranks meet without monitors: through the key-value store of the process group."""

import base64
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

import msgspec

from slav1.session.peers import peers_missing

NUM_KEPT = 64
"""Own entries that stay in the store, for ranks that have not read them yet."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1e-3, 0.05


class StorePeers:
    """Meets by entries of the store, and never blocks in it: it is the whole job's.

    What becomes of a meeting is written by whoever knows first, once and for all ranks.
    Nobody tells of a rank that is lost: it counts as missing when the limit is over.
    """

    def __init__(self, store: Callable[[], Any], *, rank: int, world_size: int, name: str) -> None:
        """Starts before the first meeting.

        Args:
            store: Returns a ``torch.distributed.Store``.
            rank: Global rank of this process.
            world_size: Ranks of the run.
            name: Tells this run's entries from others; the same on all ranks.
        """
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._prefix = f"slav1/peers/{name}"
        self._own: deque[str] = deque()
        self._lock = threading.Lock()

    @property
    def is_in_use(self) -> bool:
        try:
            return bool(self._store().check([f"{self._prefix}/in_use"]))
        except (RuntimeError, ValueError):
            # Without the store there is only the way that is left.
            return False

    def change_over(self) -> None:
        with contextlib.suppress(RuntimeError, ValueError):
            self._store().set(f"{self._prefix}/in_use", "yes")

    def fail(self, topic: str, count: int, reason: str) -> None:
        with contextlib.suppress(RuntimeError, ValueError):
            self._settle(self._key(topic, count), arrived=[self._rank], reason=reason)

    def gather(self, topic: str, count: int, raw: bytes, limit_s: float) -> list[bytes]:
        try:
            arrived, reason, values = self._gather(self._key(topic, count), raw, limit_s)
        except (RuntimeError, ValueError) as error:
            reason = f"the store of the process group failed: {error}"
            raise peers_missing(topic, (), [self._rank], reason) from error
        if reason:
            missing = sorted(set(range(self._world_size)) - set(arrived))
            raise peers_missing(topic, missing, arrived, reason)
        return values

    def _gather(self, key: str, raw: bytes, limit_s: float) -> tuple[list[int], str, list[bytes]]:
        """Returns who came and why the meeting failed, or what all of them brought."""
        self._bring(f"{key}/{self._rank}", raw)
        keys = [f"{key}/{rank}" for rank in range(self._world_size)]
        store, pause = self._store(), threading.Event()
        deadline_s, pause_s = monotonic() + limit_s, _FIRST_PAUSE_S
        while not store.check([f"{key}/outcome"]):
            if store.check(keys):
                self._settle(key)
            elif monotonic() > deadline_s:
                arrived = [rank for rank, own in enumerate(keys) if store.check([own])]
                reason = f"they did not come within {limit_s:g} s"
                self._settle(key, arrived=arrived, reason=reason)
            else:
                pause.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        arrived, reason = msgspec.json.decode(store.get(f"{key}/outcome"))
        values = [] if reason else [base64.b64decode(store.get(own)) for own in keys]
        return arrived, reason, values

    def _settle(self, key: str, *, arrived: list[int] | None = None, reason: str = "") -> None:
        """Writes what becomes of a meeting, unless it is written already."""
        outcome = msgspec.json.encode([arrived or [], reason]).decode()
        self._store().compare_set(f"{key}/outcome", "", outcome)

    def _bring(self, key: str, raw: bytes) -> None:
        store = self._store()
        store.set(key, base64.b64encode(raw).decode())
        with self._lock:
            self._own.append(key)
            oldest = self._own.popleft() if len(self._own) > NUM_KEPT else None
        if oldest is not None:
            # Not every kind of store can.
            with contextlib.suppress(RuntimeError):
                store.delete_key(oldest)

    def _key(self, topic: str, count: int) -> str:
        return f"{self._prefix}/{topic}/{count}"
