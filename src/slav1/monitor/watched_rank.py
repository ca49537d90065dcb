"""One rank as its node's monitor sees it: three clocks, a ring, a stack file."""

from collections.abc import Iterator
from pathlib import Path

from slav1.monitor.gate import Connection
from slav1.monitor.process import WatchedProcess
from slav1.monitor.stacks import StackFile
from slav1.phase import Phase
from slav1.recorder.block import Block
from slav1.recorder.layout import Word
from slav1.recorder.ring import RingReader
from slav1.sample import Pulse, Sample
from slav1.session.messages import Hello

# Reading /proc costs more than all the rest of a pulse, so it waits for silence.
_QUIET_S = 0.3
_STATE_EVERY_S = 1.0


class WatchedRank:
    """Reads one rank's block and process; knows nothing of rules."""

    def __init__(self, hello: Hello, connection: Connection, fds: list[int]) -> None:
        """Takes over the descriptors ``fds`` of the block and the stack file.

        Raises:
            BlockVersionError: If the block is of another version.
        """
        self.rank = hello.rank
        self.connection = connection
        self.block = Block(fds[0])
        self.process = WatchedProcess(connection.pid)
        self.stack_signal = hello.stack_signal
        self.stacks = StackFile(fds[1], hello.thread)
        self.exit_reason: str | None = None
        self.has_left = False
        self._ring = RingReader(self.block.words, self.block.records)
        self._state, self._state_time_s = "R", float("-inf")

    @property
    def num_lost(self) -> int:
        """Steps that were overwritten before this monitor read them."""
        return self._ring.num_lost

    @property
    def step(self) -> int:
        """Step the rank is in."""
        return self.block.words[Word.STEP]

    def phase_change(self) -> int:
        """Counter and phase in one number: changes whenever the rank makes progress."""
        return self.block.words[Word.PHASE]

    def new_samples(self) -> Iterator[Sample]:
        """Yields the steps finished since the last call."""
        return self._ring.new_samples()

    def pulse(self, now_s: float) -> Pulse:
        """Reads all three clocks.

        Args:
            now_s: This node's monotonic clock, in seconds.
        """
        words = self.block.words
        since_progress_s = max(0.0, now_s - words[Word.CHANGED_NS] * 1e-9)
        if since_progress_s > _QUIET_S or now_s - self._state_time_s > _STATE_EVERY_S:
            self._state, self._state_time_s = self.process.state(), now_s
        is_alive = self._state not in "XZ"
        return Pulse(
            rank=self.rank,
            time_s=now_s,
            is_alive=is_alive,
            process_state=self._state,
            step=words[Word.STEP],
            phase=Phase.DONE if self.has_left else Phase(words[Word.PHASE] & 255),
            since_progress_s=since_progress_s,
            num_steps=words[Word.NUM_RECORDS],
            exit_reason=self.exit_reason,
        )

    def process_ended(self) -> None:
        """Makes the next pulse look at the process at once."""
        self._state_time_s = float("-inf")

    def save_ring(self, folder: Path) -> None:
        """Writes the ring into the run folder; OSError if that fails."""
        self.block.save(folder / f"ring-{self.rank}.bin")

    def close(self) -> None:
        """Lets go of everything of this rank."""
        self.connection.close()
        self.process.close()
        self.stacks.close()
        self.block.close()
