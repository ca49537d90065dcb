"""One armed guard: a thread that ends the process when time has run out."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import cast

from slav1.breach import Fact
from slav1.startup import _backstop
from slav1.startup._board import Board, Verdict, interval_s
from slav1.startup._expiry import EXIT_CODE, Expiry, stack_of
from slav1.startup._presence import Presence
from slav1.startup._rendezvous import Rendezvous

TICK_S = 0.05
LOOK_S = 0.5
"""Usual pause between two looks at the store, in seconds."""

LAST_LOOK_S = 1.0
"""Longest wait for the store after time has run out, in seconds."""

BACKSTOP_S = 6.0
"""How long after the deadline the process is ended from C, in seconds. Longer than a
regular end takes, which needs the GIL."""

BARE_S = 1.0
"""How long a guard that has nothing to wait for gives a ``with`` statement to come, in
seconds."""

ARRIVED = "arrived"

_log = logging.getLogger("slav1.startup")
_num_armed: Counter[str] = Counter()


class Watch:
    """Counts the time of one phase and ends the process when it is over."""

    def __init__(
        self, *, phase: str, timeout_s: float, rank: int | None, world_size: int | None
    ) -> None:
        """Starts counting; lasts until the default process group comes up, or :meth:`stop`."""
        self._phase = phase
        self._timeout_s = timeout_s
        self._given = rank, world_size
        # Every rank arms the same guards in the same order, so the count tells two uses
        # of one phase apart in the same way everywhere.
        _num_armed[phase] += 1
        self._meeting = f"slav1/guard/{self._place.attempt}/{phase}/{_num_armed[phase]}"
        self._presence: Presence | None = None
        self._here: frozenset[int] = frozenset()
        self._is_bare = True
        self._was_up = group_is_up()
        self._owner_id = threading.get_ident()
        self._is_over = threading.Event()
        self._ending = threading.Lock()
        self._start_clock()
        self._board = Board(
            connect=lambda: self._place.connect(),  # noqa: PLW0108 - looked up when it is called
            prefix=self._meeting,
            interval_s=interval_s(self._place.world_size, LOOK_S),
            watched=(ARRIVED,),
        )
        self._thread = threading.Thread(target=self._run, name=f"slav1 guard {phase}", daemon=True)
        self._thread.start()

    def keep(self) -> bool:
        """Restarts the clock; from now on only :meth:`stop` ends the watch.

        Returns:
            Whether the watch is on. False if it had ended before.
        """
        with self._ending:
            self._is_bare = False
            if not self._is_over.is_set():
                self._start_clock()
            return not self._is_over.is_set()

    @property
    def is_over(self) -> bool:
        """Whether the watch has ended."""
        return self._is_over.is_set()

    def stop(self) -> None:
        """Ends the watch and leaves no thread, socket or timer behind. Harmless if repeated."""
        self._is_over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(LAST_LOOK_S + TICK_S)

    @property
    def _place(self) -> Rendezvous:
        # Read anew each time: launchers set the variables between arming and init.
        rank, world_size = self._given
        return Rendezvous.read(rank=rank, world_size=world_size)

    def _start_clock(self) -> None:
        self._deadline_s = time.monotonic() + self._timeout_s
        _backstop.hold(id(self), self._deadline_s + BACKSTOP_S)

    def _run(self) -> None:
        try:
            while not self._is_over.wait(TICK_S):
                self._announce()
                if self._ends_by_itself():
                    break
                verdict = self._others_verdict()
                if verdict is not None or time.monotonic() >= self._deadline_s:
                    self._expire(verdict)
        finally:
            self._is_over.set()
            self._board.close()
            if self._presence is not None:
                self._presence.close()
            _backstop.release(id(self))

    def _announce(self) -> None:
        place = self._place
        if place.rank is None:
            return
        # Ranks meet by the address, which some launchers set after the guard is armed.
        if self._presence is None and place.address is not None:
            self._presence = Presence(meeting=f"{self._meeting} {place.address}", rank=place.rank)
            self._board.announce(ARRIVED, place.rank)
        self._here |= {place.rank} | self._seen_now(range(place.world_size or 0))

    def _seen_now(self, ranks: Iterable[int]) -> frozenset[int]:
        return frozenset() if self._presence is None else self._presence.seen(ranks)

    def _ends_by_itself(self) -> bool:
        with self._ending:
            is_up = group_is_up()
            if not self._is_bare or not is_up:
                self._was_up = is_up
                return False
            if not self._was_up:
                self._is_over.set()
                return True
            # A with statement would have come by now.
            if time.monotonic() < min(
                self._deadline_s, self._deadline_s - self._timeout_s + BARE_S
            ):
                return False
            self._is_over.set()
        _log.warning(
            "enforce_timeout_guard('%s'): the process group is already initialised, so a bare "
            "call has nothing to bound and ends. Use it in a with statement.",
            self._phase,
        )
        return True

    def _others_verdict(self) -> Verdict | None:
        """What another rank concluded, over the store or on this machine."""
        if self._board.verdict is not None or self._presence is None:
            return self._board.verdict
        text = self._presence.heard()
        return None if text is None else json.loads(text)

    def _own_verdict(self) -> Verdict:
        rank = self._place.rank
        still_here = {rank} | self._seen_now(self._here)
        return {
            "rank": rank,
            "waited_s": self._timeout_s,
            "arrived": _facts(self._here | self._board.present(ARRIVED)),
            "left": _facts(self._here.difference(still_here)),
        }

    def _expire(self, verdict: Verdict | None) -> None:
        place = self._place
        has_store = self._board.is_reached
        if verdict is None:
            has_store = self._board.look(LAST_LOOK_S)
            verdict = self._board.conclude(self._own_verdict(), LAST_LOOK_S if has_store else 0)
        if self._presence is not None:
            self._presence.tell(self._here, json.dumps(verdict).encode())
        if self._is_over.is_set():
            return  # the phase ended while the store was read
        expiry = Expiry(
            phase=self._phase,
            waited_s=cast("float", verdict["waited_s"]),
            concluded_by=cast("int | None", verdict["rank"]),
            rank=place.rank,
            world_size=place.world_size,
            arrived=frozenset(cast("list[int]", verdict["arrived"])),
            left=frozenset(cast("list[int]", verdict["left"])),
            address=place.address,
            is_store_reached=has_store,
            is_one_node=place.is_one_node,
            is_rank_taken=self._presence is not None and self._presence.is_taken,
        )
        # Straight to the descriptor: the stuck thread may hold the lock of sys.stderr.
        os.write(_backstop.STDERR, expiry.text(stack_of(self._owner_id)).encode())
        if has_store:
            # The store may live in this process, and a launcher ends the others at the
            # first exit: let them read the verdict and say it too.
            time.sleep(2 * interval_s(place.world_size, LOOK_S) + 2 * TICK_S)
        os._exit(EXIT_CODE)


def _facts(ranks: Iterable[int]) -> list[Fact]:
    return [*sorted(ranks)]


def group_is_up() -> bool:
    """Whether the default process group is initialised and nobody is still at it."""
    is_initialized = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
    return bool(is_initialized and is_initialized()) and not _is_initialising()


def _is_initialising() -> bool:
    # The group is there before the call returns: with TORCH_DIST_INIT_BARRIER=1 ranks
    # still wait for each other then.
    for frame in sys._current_frames().values():
        caller = frame
        while caller is not None:
            if caller.f_code.co_name == "init_process_group":
                return True
            caller = caller.f_back  # type: ignore[assignment]
    return False
