"""Ending the processes of a node on behalf of the contract."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from slav1.monitor.watched_rank import WatchedRank
from slav1.recorder.layout import Word


@dataclass(kw_only=True, slots=True)
class Ending:
    """SIGTERM now or soon, SIGKILL when the grace time is over; only our own ranks.

    A rank ends by itself where it can: after a peer died its collective fails within
    a fraction of a second, and its own traceback is worth more than our signal.
    """

    ranks: Sequence[WatchedRank]
    """Ranks to end."""

    term_at_s: float
    """When SIGTERM is sent to those still alive, on the monotonic clock."""

    kill_at_s: float
    """When SIGKILL follows."""

    was_termed: bool = False
    """Whether SIGTERM was sent."""

    def begin(self) -> None:
        """Tells the ranks, through their blocks, that it is the contract that ends them."""
        for rank in self.ranks:
            rank.block.words[Word.ENDED] = 1

    def advance(self, now_s: float) -> bool:
        """Does what is due; returns whether every rank has ended."""
        alive = [rank for rank in self.ranks if rank.process.is_alive()]
        if alive and now_s >= self.kill_at_s:
            # Ours comes last, once the others are gone: it takes the monitor along.
            others = [rank for rank in alive if rank.process.pid != os.getpid()]
            for rank in others or alive:
                rank.process.send(signal.SIGKILL)
        elif alive and now_s >= self.term_at_s and not self.was_termed:
            self.was_termed = True
            for rank in alive:
                # A stopped process only takes a signal once it goes on.
                rank.process.send(signal.SIGTERM)
        return not alive
