"""The trainer's end: a few words and one record a step, nothing that can wait."""

import contextlib
import math
import struct
from collections.abc import Iterator
from time import monotonic_ns

from slav1.phase import Phase
from slav1.recorder.block import Block
from slav1.recorder.layout import RECORD, Word
from slav1.recorder.ring import RingReader, sample_of
from slav1.sample import Sample

_NS = 1e-9
_NUM_PHASES = max(Phase) + 1

# Plain integers: an enum member as an index costs ten times as much as an int.
_STEP, _PHASE, _CHANGED_NS = int(Word.STEP), int(Word.PHASE), int(Word.CHANGED_NS)
_STARTED, _COMPLETED = int(Word.COLLECTIVES_STARTED), int(Word.COLLECTIVES_COMPLETED)
_NUM_RECORDS, _NUM_BATCHES = int(Word.NUM_RECORDS), int(Word.NUM_BATCHES)
_NUM_SAVES, _NUM_EVALUATIONS = int(Word.NUM_SAVES), int(Word.NUM_EVALUATIONS)
_NUM_EPOCHS = int(Word.NUM_EPOCHS)
_DATA, _FORWARD = int(Phase.DATA), int(Phase.FORWARD)
_BACKWARD, _OPTIMIZER = int(Phase.BACKWARD), int(Phase.OPTIMIZER)
_EVALUATION, _CHECKPOINT = int(Phase.EVALUATION), int(Phase.CHECKPOINT)
_RECORD_BYTES = RECORD.size
_PACK = RECORD.pack_into
_NO_TIMES = (0,) * _NUM_PHASES
_UNKNOWN = (math.nan, math.nan)
_LOSS_AND_NORM, _LOSS_AT = struct.Struct("=dd"), 24
_ZERO_SHARE, _ZERO_SHARE_AT = struct.Struct("=d"), RECORD.size - 24
_FLAGS, _FLAGS_AT = struct.Struct("=q"), RECORD.size - 8


class Recorder:
    """Writes where this rank is and what each step took.

    Hot path: no thread, no lock, no system call but the clock, no communication.
    """

    def __init__(self, block: Block) -> None:
        self._words = block.words
        self._records = block.records
        self._num_slots = block.words[Word.NUM_SLOTS]
        self._num_records = 0
        self._phase = int(Phase.SETUP)
        self._changes = 0
        self._num_started = 0
        self._spent_ns = list(_NO_TIMES)
        self._sync_ns = 0
        self._own_work_end_ns = 0
        self._memory_mib = _UNKNOWN
        self._since_ns = self._step_start_ns = monotonic_ns()
        self._words[_CHANGED_NS] = self._since_ns

    @property
    def phase(self) -> Phase:
        """The phase this rank is in."""
        return Phase(self._phase)

    @property
    def num_records(self) -> int:
        """Steps written so far."""
        return self._num_records

    def enter(self, phase: int) -> None:
        """Says that ``phase`` begins now."""
        now = monotonic_ns()
        self._spent_ns[self._phase] += now - self._since_ns
        self._since_ns = now
        self._phase = phase
        self._changes += 256
        words = self._words
        words[_CHANGED_NS] = now
        words[_PHASE] = self._changes | phase

    def starts_at(self, step: int) -> None:
        """Says which step comes next, as after a resume or a rollback; not while a decision
        is being made."""
        self._words[_STEP] = step

    def own_work_ends(self) -> None:
        """Says that what is left of the backward is waiting for other ranks."""
        self._own_work_end_ns = monotonic_ns()

    def enter_synced_backward(self) -> None:
        """Says that a backward begins which ends in a gradient sync."""
        self._own_work_end_ns = 0
        self._num_started += 1
        self._words[_STARTED] = self._num_started
        self.enter(_BACKWARD)

    def leave_synced_backward(self, phase: int) -> None:
        """Says that the backward and its sync are over and ``phase`` begins."""
        start = self._since_ns
        self.enter(phase)
        self._words[_COMPLETED] = self._num_started
        if self._own_work_end_ns > start:
            waited = self._since_ns - self._own_work_end_ns
            self._sync_ns += waited
            self._spent_ns[_BACKWARD] -= waited

    def leave_out(self, waited_ns: int) -> None:
        """Takes time that was spent waiting for other ranks out of the phase in hand."""
        self._spent_ns[self._phase] -= waited_ns

    @contextlib.contextmanager
    def beside(self, phase: int) -> Iterator[None]:
        """Something that counts for no phase's time, and has the limits of ``phase``."""
        before, start_ns = self._phase, monotonic_ns()
        self.enter(phase)
        try:
            yield
        finally:
            self.leave_out(monotonic_ns() - start_ns)
            self.enter(before)

    def count_batch(self) -> None:
        """Says that one more batch has begun."""
        self._words[_NUM_BATCHES] += 1

    def note_memory(self, allocated_mib: float, reserved_mib: float) -> None:
        """Says what the device holds after the update, for the step that ends next."""
        self._memory_mib = (allocated_mib, reserved_mib)

    def count_epoch(self) -> None:
        """Says that an epoch has ended."""
        self._words[_NUM_EPOCHS] += 1

    def has_device(self, total_mib: float) -> None:
        """Says how much memory this rank's device has, in MiB."""
        self._words[Word.DEVICE_MIB] = int(total_mib)

    def forget_times(self, *, was_evaluation: bool = True) -> None:
        """Starts the step anew, as after an evaluation or a save between two steps; counts
        them.

        Args:
            was_evaluation: Whether time in the phase of evaluations was spent on one, and not
                between two epochs.
        """
        if self._spent_ns[_CHECKPOINT]:
            self._words[_NUM_SAVES] += 1
        if self._spent_ns[_EVALUATION] and was_evaluation:
            self._words[_NUM_EVALUATIONS] += 1
        self._spent_ns = list(_NO_TIMES)
        self._sync_ns = 0
        self._step_start_ns = monotonic_ns()

    def end_step(
        self,
        step: int,
        *,
        loss: float = math.nan,
        grad_norm: float = math.nan,
        allocated_mib: float | None = None,
        reserved_mib: float = math.nan,
        zero_share: float = math.nan,
        batch: int = -1,
        flags: int = 0,
    ) -> int:
        """Writes the record of ``step`` and starts the next one.

        The record is not shown to the monitor before :meth:`publish`.

        Args:
            step: Optimizer step that just ended, from 0.
            loss: Loss on this rank; only believed with ``layout.HAS_LOSS``.
            grad_norm: L2 norm; only believed with ``layout.HAS_GRAD_NORM``.
            allocated_mib: Device memory that tensors hold, in MiB; NaN if unknown, None for
                what :meth:`note_memory` was told last.
            reserved_mib: Device memory that the allocator holds, in MiB; NaN if unknown.
            zero_share: Share of the gradient that is exactly 0; NaN if unknown.
            batch: Batch number since the start, from 0; -1 if unknown.
            flags: Sum of the flags of :mod:`slav1.recorder.layout`.

        Returns:
            Number of the record.
        """
        now = monotonic_ns()
        spent = self._spent_ns
        spent[self._phase] += now - self._since_ns
        self._since_ns = now
        was_synced = self._own_work_end_ns != 0
        if allocated_mib is None:
            allocated_mib, reserved_mib = self._memory_mib
            self._memory_mib = _UNKNOWN
        number = self._num_records
        _PACK(
            self._records,
            number % self._num_slots * _RECORD_BYTES,
            number,
            step,
            now,
            loss,
            grad_norm,
            (now - self._step_start_ns) * _NS,
            spent[_DATA] * _NS,
            spent[_FORWARD] * _NS,
            spent[_BACKWARD] * _NS if was_synced else math.nan,
            self._sync_ns * _NS if was_synced else math.nan,
            spent[_OPTIMIZER] * _NS,
            allocated_mib,
            reserved_mib,
            zero_share,
            batch,
            flags,
        )
        self._num_records = number + 1
        self._spent_ns = list(_NO_TIMES)
        self._sync_ns = 0
        self._step_start_ns = now
        return number

    def last_sample(self) -> Sample | None:
        """Reads the newest record back, for a host that shows it; None before the first."""
        if self._num_records == 0:
            return None
        number = (self._num_records - 1) % self._num_slots
        fields = RECORD.unpack_from(self._records, number * _RECORD_BYTES)
        return sample_of(self._words[Word.RANK], fields)

    def reader(self) -> RingReader:
        """Returns a reader of what is published, for a host that sums it up."""
        return RingReader(self._words, self._records)

    def publish(self, number: int) -> None:
        """Shows the monitor the records up to ``number``."""
        self._words[_NUM_RECORDS] = number + 1

    def add_late(
        self,
        number: int,
        *,
        loss: float,
        grad_norm: float = math.nan,
        zero_share: float = math.nan,
        flags: int,
    ) -> None:
        """Puts what came late from a device into a record that is not yet published."""
        start = number % self._num_slots * _RECORD_BYTES
        _LOSS_AND_NORM.pack_into(self._records, start + _LOSS_AT, loss, grad_norm)
        _ZERO_SHARE.pack_into(self._records, start + _ZERO_SHARE_AT, zero_share)
        flags |= _FLAGS.unpack_from(self._records, start + _FLAGS_AT)[0]
        _FLAGS.pack_into(self._records, start + _FLAGS_AT, flags)
