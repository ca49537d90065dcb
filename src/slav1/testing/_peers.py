"""Ranks as threads of one process, to test what ranks do together without starting any."""

import threading
import time
from collections.abc import Callable
from typing import Any

from slav1.checkpoint.peers import PeersMissingError


class ThreadPeers:
    """The :class:`~slav1.checkpoint.Peers` of a rank that is a thread.

    Attributes:
        rank: Rank of this thread.
        world_size: How many there are.
        records: What this rank wrote into the ledger: kind, message, evidence.
        num_gathers: How many meetings it went to.
    """

    def __init__(self, rank: int, hall: "_Hall") -> None:
        self.rank = rank
        self.world_size = hall.world_size
        self.records: list[tuple[str, str, dict[str, Any]]] = []
        self.num_gathers = 0
        self._hall = hall
        self._num_calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def gather(self, topic: str, value: Any, *, limit_s: float) -> list[Any]:
        with self._lock:
            self.num_gathers += 1
            number = self._num_calls[topic] = self._num_calls.get(topic, 0) + 1
        return self._hall.meet(topic, number, self.rank, value, limit_s)

    def record(
        self,
        kind: str,
        message: str,
        *,
        step: int | None = None,
        rule: str | None = None,
        **evidence: Any,
    ) -> None:
        self.records.append((kind, message, {"step": step, "rule": rule, **evidence}))

    io_percent = 100

    def leave(self) -> None:
        """Acts as a rank that is lost: who waits for it is told at once."""
        self._hall.leave(self.rank)


class _Hall:
    """Where the threads meet."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._change = threading.Condition()
        self._meetings: dict[tuple[str, int], dict[int, Any]] = {}
        self._lost: set[int] = set()

    def meet(self, topic: str, number: int, rank: int, value: Any, limit_s: float) -> list[Any]:
        deadline = time.monotonic() + limit_s
        with self._change:
            here = self._meetings.setdefault((topic, number), {})
            here[rank] = value
            self._change.notify_all()
            while len(here) < self.world_size:
                left = deadline - time.monotonic()
                missing = set(range(self.world_size)) - set(here)
                if left <= 0 or missing & self._lost:
                    raise PeersMissingError(
                        topic=topic, missing=tuple(missing), arrived=tuple(here)
                    )
                self._change.wait(left)
            return [here[one] for one in range(self.world_size)]

    def leave(self, rank: int) -> None:
        with self._change:
            self._lost.add(rank)
            self._change.notify_all()


def run_ranks(
    work: Callable[[ThreadPeers], Any], world_size: int, *, limit_s: float = 60.0
) -> list[Any]:
    """Runs something on several ranks at once, each a thread of this process.

    Args:
        work: Called once for each rank, with its peers.
        world_size: How many ranks.
        limit_s: How long to wait for all, in seconds.

    Returns:
        What each returned, or the exception that it raised, in rank order.

    Raises:
        TimeoutError: If a rank did not end.
    """
    hall = _Hall(world_size)
    ends: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        peers = ThreadPeers(rank, hall)
        try:
            ends[rank] = work(peers)
        except Exception as error:  # noqa: BLE001 - what a rank raises is its result
            ends[rank] = error
        finally:
            peers.leave()

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_s
    for rank, thread in enumerate(threads):
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            raise TimeoutError(f"Rank {rank} did not end within {limit_s:g} s.")
    return ends
