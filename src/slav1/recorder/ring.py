"""Reading a block: new records as samples, and a saved ring from its file."""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

from slav1.recorder import layout
from slav1.recorder.block import BlockVersionError, check_header, check_slots
from slav1.recorder.layout import HEADER_BYTES, RECORD, Word
from slav1.sample import Sample

_NUMBER = struct.Struct("=q")
_NON_FINITE = (
    (layout.INPUT_NON_FINITE, "input"),
    (layout.PARAMETERS_NON_FINITE, "parameters"),
    (layout.LOSS_NON_FINITE, "loss"),
    (layout.GRADIENT_NON_FINITE, "gradient"),
)


class RingReader:
    """Hands out each record of a block once, oldest first."""

    def __init__(self, words: "memoryview[int]", records: memoryview) -> None:
        self._words = words
        self._records = records
        self._num_slots = words[Word.NUM_SLOTS]
        self._rank = words[Word.RANK]
        self._next = 0
        self.num_lost = 0
        """Records overwritten before they were read."""

    def new_samples(self) -> Iterator[Sample]:
        """Yields the samples written since the last call."""
        num_records = self._words[Word.NUM_RECORDS]
        oldest = num_records - self._num_slots
        if self._next < oldest:
            self.num_lost += oldest - self._next
            self._next = oldest
        while self._next < num_records:
            sample = self._read(self._next)
            self._next += 1
            if sample is None:
                self.num_lost += 1
            else:
                yield sample

    def _read(self, number: int) -> Sample | None:
        start = number % self._num_slots * RECORD.size
        fields = RECORD.unpack_from(self._records, start)
        # The writer may have lapped us before we read, or while we did.
        (number_now,) = _NUMBER.unpack_from(self._records, start)
        return sample_of(self._rank, fields) if fields[0] == number == number_now else None


def sample_of(rank: int, fields: tuple[float, ...]) -> Sample:
    """Turns the fields of one record into a sample of ``rank``."""
    (_, step, end_ns, loss, grad_norm, step_s, data_s, forward_s, backward_s, sync_s) = fields[:10]
    optimizer_s, allocated_mib, reserved_mib, zero_share, batch, flag_word = fields[10:]
    flags = int(flag_word)
    return Sample(
        rank=rank,
        step=int(step),
        time_s=end_ns * 1e-9,
        loss=loss if flags & layout.HAS_LOSS else None,
        grad_norm=grad_norm if flags & layout.HAS_GRAD_NORM else None,
        step_time_s=_measured(step_s),
        data_s=_measured(data_s),
        forward_s=_measured(forward_s),
        backward_s=_measured(backward_s),
        sync_s=_measured(sync_s),
        optimizer_s=_measured(optimizer_s),
        allocated_mib=_measured(allocated_mib),
        reserved_mib=_measured(reserved_mib),
        zero_share=_measured(zero_share),
        batch=int(batch) if batch >= 0 else None,
        non_finite=tuple(name for flag, name in _NON_FINITE if flags & flag),
        is_warmup=bool(flags & layout.IS_WARMUP),
        is_update_left_out=bool(flags & layout.UPDATE_LEFT_OUT),
        is_scaled=bool(flags & layout.IS_SCALED),
    )


def read_ring_file(path: Path) -> list[Sample]:
    """Reads the samples of a saved ring, oldest first.

    Args:
        path: A ``ring-<rank>.bin`` of a run folder.

    Returns:
        The samples it still holds; a record cut off or half overwritten is left out.

    Raises:
        BlockVersionError: If the file is no ring of this version.
        OSError: If it can't be read.
    """
    raw = path.read_bytes()
    try:
        if len(raw) < HEADER_BYTES:
            raise BlockVersionError(f"it has only {len(raw)} bytes, too few for a flight ring.")
        words = memoryview(raw)[:HEADER_BYTES].cast("q")
        check_header(words[Word.MAGIC], words[Word.VERSION])
        check_slots(words[Word.NUM_SLOTS], len(raw))
    except BlockVersionError as error:
        raise BlockVersionError(f"{path} can't be read: {error}") from error
    return list(RingReader(words, memoryview(raw)[HEADER_BYTES:]).new_samples())


def _measured(value: float) -> float | None:
    return None if math.isnan(value) else value
