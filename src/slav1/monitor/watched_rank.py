"""One rank as its node's monitor sees it: three clocks, a ring, a stack file."""

from collections.abc import Iterator

from slav1.monitor.gate import Connection
from slav1.monitor.process import WatchedProcess
from slav1.monitor.stacks import StackFile
from slav1.monitor.usage_reader import UsageReader
from slav1.phase import Phase
from slav1.recorder.block import Block
from slav1.recorder.layout import Word
from slav1.recorder.ring import RingReader
from slav1.sample import Pulse, Sample
from slav1.session.messages import Hello
from slav1.session.parts import Joiner

_PHASES = {int(phase): phase for phase in Phase}
_BEAT_EVERY_S = 1.0
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
        self.parts = Joiner()
        """Puts together what the rank had to cut."""
        self.usage = UsageReader(connection.pid, hello.rank, self.block.words)
        """Reads what its processes hold."""
        self._clock_starts_s = float("-inf")
        self._ring = RingReader(self.block.words, self.block.records)
        self._state, self._state_time_s = "R", float("-inf")
        self._pulsed_at_s = float("-inf")
        self._seen_change = -1
        self._was_silent = False
        self._silence: tuple[int, float] | None = None
        self._queued_s = 0.0
        self._longest_s = 0.0

    @property
    def num_lost(self) -> int:
        """Steps that were overwritten before this monitor read them."""
        return self._ring.num_lost

    @property
    def step(self) -> int:
        """Step the rank is in."""
        return self.block.words[Word.STEP]

    @property
    def phase(self) -> Phase:
        """Phase the rank is in; ``DONE`` once it has left."""
        if self.has_left:
            return Phase.DONE
        # Whatever a stray pointer of the trainer wrote there, its monitor goes on.
        return _PHASES.get(self.block.words[Word.PHASE] & 255, Phase.SETUP)

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
        self._pulsed_at_s = now_s
        changed_s = max(words[Word.CHANGED_NS] * 1e-9, self._clock_starts_s)
        since_progress_s = max(0.0, now_s - changed_s)
        if since_progress_s > _QUIET_S:
            since_progress_s = self._own_silence_s(since_progress_s)
        if since_progress_s > _QUIET_S or now_s - self._state_time_s > _STATE_EVERY_S:
            self._state, self._state_time_s = self.process.state(), now_s
        is_alive = self._state not in "XZ"
        return Pulse(
            rank=self.rank,
            time_s=now_s,
            is_alive=is_alive,
            process_state=self._state,
            step=words[Word.STEP],
            phase=self.phase,
            since_progress_s=since_progress_s,
            num_steps=words[Word.NUM_RECORDS],
            exit_reason=self.exit_reason,
        )

    def _own_silence_s(self, silence_s: float) -> float:
        """Seconds of a silence without those in which the rank could have run but got no
        processor: an overloaded machine is no hang. Counted from the first look at it.

        The kernel tells of a wait for a processor when it is over. So the difference may
        shrink, which must not look as if the rank had got on.
        """
        silence, queued_s = (self.phase_change(), self._clock_starts_s), self.process.queued_s()
        if silence != self._silence:
            self._silence, self._queued_s, self._longest_s = silence, queued_s, _QUIET_S
        self._longest_s = max(self._longest_s, silence_s - (queued_s - self._queued_s))
        return self._longest_s

    def is_worth_a_pulse(self, now_s: float) -> bool:
        """Whether a pulse would tell anything: the rank is silent, was silent, or has not
        been looked at for a second."""
        change = self.phase_change()
        is_silent, self._seen_change = change == self._seen_change, change
        was_silent, self._was_silent = self._was_silent, is_silent
        is_late = now_s - self._pulsed_at_s >= _BEAT_EVERY_S or self._state_time_s < 0.0
        return is_silent or was_silent or is_late

    def beat(self) -> None:
        """Shows the rank that its monitor lives."""
        self.block.words[Word.BEAT] += 1

    def ask_for_allocations(self, *, is_device: bool) -> None:
        """Lets the rank look which line of code holds more and more memory."""
        words = self.block.words
        num_asked = words[Word.ALLOCATIONS_WANTED] // 2 + 1
        words[Word.ALLOCATIONS_WANTED] = 2 * num_asked + is_device

    def restart_clock(self, now_s: float) -> None:
        """Counts the rank's silence from now on, as after a pause of this monitor."""
        self._clock_starts_s = now_s

    def process_ended(self) -> None:
        """Makes the next pulse look at the process at once."""
        self._state_time_s = float("-inf")

    def ring_bytes(self) -> bytes:
        """The ring as it is now, as it is written into the run folder."""
        return self.block.content()

    def close(self) -> None:
        """Lets go of everything of this rank."""
        self.connection.close()
        self.process.close()
        self.stacks.close()
        self.block.close()
