"""Writing the flight rings of a node's ranks into the run folder."""

import errno
from pathlib import Path

from slav1.coordinator.say import say
from slav1.monitor.watched_rank import WatchedRank

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Rings:
    """Saves rings; trouble is told once, and never reaches the training."""

    def __init__(self, folder: Path) -> None:
        """Takes the run folder; it may lack on this node."""
        self._folder = folder
        self._unsaved: set[int] = set()
        self._is_trouble_told = False

    def save(self, rank: WatchedRank) -> None:
        """Writes the ring of one rank as it is now."""
        try:
            rank.save_ring(self._folder)
        except OSError as error:
            self._unsaved.add(rank.rank)
            # That the disk is full was told already, by whoever writes the ledger.
            if error.errno not in _FULL and not self._is_trouble_told:
                self._is_trouble_told = True
                say(
                    f"The flight ring of rank {rank.rank} can't be written to {self._folder}: "
                    f"{error}. Training is not affected."
                )
        else:
            self._unsaved.discard(rank.rank)

    def tell_unsaved(self) -> None:
        """Says at the end which rings a full disk has cost."""
        if self._unsaved and not self._is_trouble_told:
            say(
                f"The flight rings of ranks {sorted(self._unsaved)} could not be written to "
                f"{self._folder}: the disk is full."
            )
