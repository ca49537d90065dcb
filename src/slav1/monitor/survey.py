"""Looking at all ranks of a node at one moment, stacks included."""

from collections.abc import Collection
from pathlib import Path

from slav1.coordinator.messages import AskSurvey, Position
from slav1.monitor.watched_rank import WatchedRank
from slav1.recorder.layout import Word

SETTLE_S = 0.01
"""Silence after which a stack dump counts as whole, in seconds."""

LONGEST_S = 0.25
"""How long stacks are waited for, in seconds; a stopped process writes none."""


class Survey:
    """Asks every rank for its stacks and gathers where each one is."""

    def __init__(
        self, asked: AskSurvey, ranks: Collection[WatchedRank], now_s: float, folder: Path | None
    ) -> None:
        """Sends the signals.

        Args:
            asked: What the coordinator asked for.
            ranks: Ranks of the node that are still watched.
            now_s: Monotonic clock, in seconds.
            folder: Where whole dumps are written; None to write none.
        """
        self.number = asked.number
        self._num_told = asked.num_told
        self._ranks = list(ranks)
        self._deadline_s = now_s + LONGEST_S
        self._folder = folder
        self._sizes: dict[int, int] = {}
        self._sized_at_s = now_s
        # Whoever has left was promised no more signals.
        self._asked = [rank for rank in ranks if rank.stack_signal and not rank.has_left]
        for rank in self._ranks:
            rank.stacks.mark()
        for rank in self._asked:
            rank.process.send(rank.stack_signal)

    def is_complete(self, now_s: float) -> bool:
        """Whether every stack is written, or will not come any more.

        A dump has no end mark: it counts as whole when it has not grown for
        ``SETTLE_S``. Calls come closer together than that while messages wait.
        """
        if now_s - self._sized_at_s < SETTLE_S:
            return False
        self._sized_at_s = now_s
        sizes = {rank.rank: rank.stacks.size() for rank in self._asked}
        is_quiet = sizes == self._sizes and all(sizes.values())
        self._sizes = sizes
        return is_quiet or now_s >= self._deadline_s

    def positions(self, now_s: float) -> list[Position]:
        """Returns where every rank is."""
        return [self._position(rank, now_s) for rank in self._ranks]

    def _position(self, rank: WatchedRank, now_s: float) -> Position:
        rank.process_ended()
        dump = rank.stacks.read()
        path = self._write(rank.rank, dump.text) if dump.frames else None
        return Position(
            pulse=rank.pulse(now_s),
            change=rank.phase_change(),
            num_batches=rank.block.words[Word.NUM_BATCHES],
            stack=[str(frame) for frame in dump.frames],
            stack_path=path,
        )

    def _write(self, rank: int, text: str) -> str | None:
        if self._folder is None:
            return None
        # A long save may be looked at hundreds of times: a look that led to nothing is
        # written over by the next.
        path = self._folder / f"stacks-{rank}-{self._num_told}.txt"
        try:
            path.write_text(text)
        except OSError:
            # The ledger line carries the training thread's frames in any case.
            return None
        return path.name
