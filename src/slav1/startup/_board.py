"""A board in the job's store: who is here, and how it ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from slav1.breach import Fact

Verdict = Mapping[str, Fact]
"""What one rank concluded for all. The first one on the board is everyone's."""


class Store(Protocol):
    """The part of ``torch.distributed.Store`` that a board needs."""

    def append(self, key: str, value: str) -> Any:
        """Adds text to the end of a key's text."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys exist."""

    def get(self, key: str) -> bytes:
        """The text of a key that exists."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Sets a key that does not exist yet; returns what stands there now."""


class Board:
    """Talks to the store from a thread of its own, so that no caller ever waits for it.

    A store can be out of reach, or answer late, exactly when it matters: its host may
    be the rank that is missing. What was read is remembered, and everything that waits
    has a bound.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Store | None],
        prefix: str,
        interval_s: float,
        watched: Sequence[str],
    ) -> None:
        """Starts the thread.

        Args:
            connect: Gives the store, or None while there is none.
            prefix: Start of all keys; the same on all ranks, and used once.
            interval_s: Pause between two looks, in seconds.
            watched: Places whose visitors are read.
        """
        self._connect = connect
        self._prefix = prefix
        self._interval_s = interval_s
        self._watched = tuple(watched)
        self._store: Store | None = None
        self._news = threading.Condition()
        self._announcements: list[tuple[str, int]] = []
        self._num_sent = 0
        self._present: dict[str, frozenset[int]] = {}
        self._proposal: Verdict | None = None
        self._verdict: Verdict | None = None
        self._num_asked = 0
        self._num_answered = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._talk, name=f"slav1 {prefix}", daemon=True)
        self._thread.start()

    @property
    def is_reached(self) -> bool:
        """Whether the last look at the store succeeded."""
        return self._store is not None

    @property
    def verdict(self) -> Verdict | None:
        """What stands on the board as the end of it, as far as this rank has read."""
        return self._verdict

    def present(self, place: str) -> frozenset[int]:
        """Ranks that announced themselves at a place, as far as this rank has read."""
        return self._present.get(place, frozenset())

    def announce(self, place: str, rank: int) -> None:
        """Says that a rank is at a place; returns at once."""
        with self._news:
            self._announcements.append((place, rank))
            self._news.notify_all()

    def look(self, timeout_s: float) -> bool:
        """Reads the board once more, and waits for it ``timeout_s`` seconds at most.

        Returns:
            Whether the store answered.
        """
        with self._news:
            self._num_asked += 1
            asked = self._num_asked
            self._news.notify_all()
            is_answered = self._news.wait_for(lambda: self._num_answered >= asked, timeout_s)
            return is_answered and self.is_reached

    def conclude(self, own: Verdict, timeout_s: float) -> Verdict:
        """Proposes how it ended, unless another rank was first.

        Args:
            own: What this rank concluded.
            timeout_s: Longest wait for the store, in seconds.

        Returns:
            The verdict that stands on the board; ``own`` if the store did not answer.
        """
        with self._news:
            self._proposal = own
        self.look(timeout_s)
        return self._verdict or own

    def close(self, timeout_s: float = 2.0) -> None:
        """Ends the thread, and waits for it ``timeout_s`` seconds at most."""
        with self._news:
            self._is_closed = True
            self._news.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _talk(self) -> None:
        # The first look waits too: a board that is closed at once never touches a store.
        while self._wait_for_work():
            with self._news:
                asked = self._num_asked
            try:
                self._exchange()
            except (RuntimeError, OSError):
                # Torch's store errors are RuntimeErrors: it is gone, or was never whole.
                self._store, self._num_sent = None, 0
            with self._news:
                self._num_answered = asked
                self._news.notify_all()
        self._store = None

    def _wait_for_work(self) -> bool:
        def is_wanted() -> bool:
            has_more = len(self._announcements) > self._num_sent and self.is_reached
            return self._is_closed or has_more or self._num_asked > self._num_answered

        with self._news:
            self._news.wait_for(is_wanted, self._interval_s)
            return not self._is_closed

    def _exchange(self) -> None:
        if self._verdict is not None:
            return  # nothing follows a verdict, and the store's host may be leaving now
        if self._store is None:
            self._store = self._connect()
        if self._store is None:
            return
        while self._num_sent < len(self._announcements):
            place, rank = self._announcements[self._num_sent]
            self._store.append(f"{self._prefix}/{place}", f"{rank},")
            self._num_sent += 1
        for place in self._watched:
            key = f"{self._prefix}/{place}"
            if self._store.check([key]):
                text = self._store.get(key).decode()
                self._present[place] = frozenset(int(rank) for rank in text.split(",") if rank)
        if self._verdict is None:
            self._verdict = self._read_verdict(self._store)

    def _read_verdict(self, store: Store) -> Verdict | None:
        key = f"{self._prefix}/verdict"
        if self._proposal is not None:
            text = store.compare_set(key, "", json.dumps(self._proposal))
        elif store.check([key]):
            text = store.get(key)
        else:
            return None
        verdict: Verdict = json.loads(text)
        return verdict


def interval_s(world_size: int | None, least_s: float) -> float:
    """Pause between two looks: longer in a large job, whose ranks share one store."""
    return max(least_s, (world_size or 1) / 2000)
