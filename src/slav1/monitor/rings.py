"""Writing the flight rings of a node's ranks into the run folder."""

import errno
import threading
from collections.abc import Iterable
from pathlib import Path

from slav1.coordinator.say import say
from slav1.monitor.watched_rank import WatchedRank
from slav1.recorder.block import save_bytes

BESIDE_LIMIT_S = 2.0
"""How long the end of a run waits for rings that are written beside it, in seconds."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Rings:
    """Saves rings; trouble is told once, and never reaches the training."""

    def __init__(self, folder: Path) -> None:
        """Takes the run folder; it may lack on this node."""
        self._folder = folder
        self._unsaved: set[int] = set()
        self._is_trouble_told = False
        self._beside: list[threading.Thread] = []

    def save(self, rank: WatchedRank) -> None:
        """Writes the ring of one rank as it is now."""
        self._write(rank.rank, rank.ring_bytes())

    def save_beside(self, ranks: Iterable[WatchedRank]) -> None:
        """Writes the rings of some ranks as they are now, without waiting for the disk."""
        rings = [(rank.rank, rank.ring_bytes()) for rank in ranks]
        self._unsaved |= {rank for rank, _ in rings}
        before = self._beside[-1] if self._beside else None

        def write() -> None:
            if before is not None:
                before.join()
            for rank, ring in rings:
                self._write(rank, ring)

        thread = threading.Thread(target=write, name="slav1-rings", daemon=True)
        self._beside.append(thread)
        thread.start()

    def await_beside(self) -> None:
        """Waits for what is written beside, but not for long: a disk may hang."""
        if self._beside:
            self._beside[-1].join(BESIDE_LIMIT_S)

    def tell_unsaved(self) -> None:
        """Says at the end which rings the disk has cost."""
        if self._unsaved and not self._is_trouble_told:
            say(
                f"The flight rings of ranks {sorted(self._unsaved)} could not be written to "
                f"{self._folder}: the disk is full, or does not answer."
            )

    def _write(self, rank: int, ring: bytes) -> None:
        try:
            save_bytes(ring, self._folder / f"ring-{rank}.bin")
        except OSError as error:
            self._unsaved.add(rank)
            # That the disk is full was told already, by whoever writes the ledger.
            if error.errno not in _FULL and not self._is_trouble_told:
                self._is_trouble_told = True
                say(
                    f"The flight ring of rank {rank} can't be written to {self._folder}: "
                    f"{error}. Training is not affected."
                )
        else:
            self._unsaved.discard(rank)
