"""How rank 0 hands the ticket of a run to the other ranks."""

import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

_num_meetings: Counter[str] = Counter()


class Rendezvous(Protocol):
    """One exchange between rank 0 and all others. No collective: nobody has to wait
    for anybody but rank 0, and not for ever."""

    def publish(self, ticket: bytes) -> None:
        """Rank 0 hands out the ticket."""
        ...

    def fetch(self, limit_s: float) -> bytes:
        """Another rank waits for it; TimeoutError after ``limit_s`` seconds."""
        ...


class Alone:
    """The only process of a job has nobody to hand anything to."""

    def publish(self, ticket: bytes) -> None:
        del ticket

    def fetch(self, limit_s: float) -> bytes:
        raise TimeoutError(f"one process alone waited {limit_s:g} s for a second one")


class StoreRendezvous:
    """Through the key-value store of the process group.

    The key counts the meetings of this process, so that a second fit in the same job
    finds its own ticket. All ranks have to meet equally often, which they do: a
    session is joined on all ranks or on none.
    """

    def __init__(self, store: Any) -> None:
        """Takes a ``torch.distributed.Store``."""
        self._store = store
        _num_meetings["store"] += 1
        self._key = f"slav1/ticket/{_num_meetings['store']}"

    def publish(self, ticket: bytes) -> None:
        self._store.set(self._key, ticket.decode())

    def fetch(self, limit_s: float) -> bytes:
        try:
            self._store.wait([self._key], timedelta(seconds=limit_s))
        except RuntimeError as error:
            raise TimeoutError(
                f"Rank 0 has not handed out this run's ticket within {limit_s:g} s: it may "
                "have failed while starting its monitor. Look at its output."
            ) from error
        ticket: bytes = self._store.get(self._key)
        return ticket


def job_rendezvous() -> Rendezvous:
    """The rendezvous of this process: the process group's store, if there is a group."""
    store = store_of_group()
    return Alone() if store is None else StoreRendezvous(store())


def store_of_group() -> Callable[[], Any] | None:
    """What returns the store of the process group; None if there is no group of several."""
    # A process that has not imported torch has no group; it need not import it to know.
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not (dist.is_available() and dist.is_initialized()):
        return None
    if dist.get_world_size() == 1:
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store
