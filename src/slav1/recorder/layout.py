"""The shared block of one rank: words of progress and command, and a ring of steps.

One fixed layout of native 64-bit words and fixed-size records, read and written by
processes of one host only. Every word has one writer.
"""

import struct
from enum import IntEnum

MAGIC = int.from_bytes(b"SLARING1", "little")
"""First word of a block."""

VERSION = 2
"""Second word. A reader refuses any other version."""


class Word(IntEnum):
    """Index of each 64-bit word. The trainer writes those under ``HOLD`` and from
    ``NUM_EVALUATIONS`` on, the monitor those between."""

    MAGIC = 0
    VERSION = 1
    RANK = 2
    NUM_SLOTS = 3
    PID = 4
    STEP = 5
    """Step about to be entered, or being worked on."""
    PHASE = 6
    """Counts phase changes in the upper 56 bits; the phase in the lower 8."""
    CHANGED_NS = 7
    """Monotonic nanoseconds of the last phase change."""
    COLLECTIVES_STARTED = 8
    COLLECTIVES_COMPLETED = 9
    NUM_RECORDS = 10
    """Records ever written; the newest lies in slot ``(NUM_RECORDS - 1) % NUM_SLOTS``."""
    CARRIED_OUT = 11
    """Number of the last decision this rank carried out; 0 for none."""
    NUM_BATCHES = 12
    """Batches begun, micro-batches included."""
    CARRIED_OUT_NS = 13
    """Monotonic nanoseconds at which it was carried out."""
    CARRIED_OUT_STEP = 14
    """Step at whose end it was carried out."""
    NUM_SAVES = 15
    """Checkpoints saved between steps."""

    HOLD = 16
    """Number of the decision being made; 0 if none."""
    SCHEDULED = 17
    """Number of the decision that ``SCHEDULE_STEP`` and ``ACTION`` belong to."""
    SCHEDULE_STEP = 18
    ACTION = 19
    BEAT = 20
    """Counts the monitor's rounds, so that the trainer can tell it lives."""
    ENDED = 21
    """Not 0 once the monitor ends this process on behalf of the contract."""
    ONSET_STEP = 22
    """First bad step of decision ``SCHEDULED``; -1 if it has none."""
    ALARM_STEP = 23
    """Step at which that was found; -1 if it has none."""
    IO_PERCENT = 24
    """Share of its speed that a save in the background keeps, in percent; 0 is all of it."""
    ALLOCATIONS_WANTED = 25
    """Counts how often the monitor wanted to know which code allocates what is not given
    back; times two, plus 1 for memory of the device."""

    NUM_EVALUATIONS = 28
    """Evaluations ended."""
    NUM_EPOCHS = 29
    """Epochs ended."""
    DEVICE_MIB = 30
    """Memory of this rank's device, in MiB; 0 if it has none or does not say."""


NUM_WORDS = 32
HEADER_BYTES = NUM_WORDS * 8

RECORD = struct.Struct("=qqqdddddddddddqq")
"""sequence, step, end_ns, loss, grad_norm, step_s, data_s, forward_s, backward_s,
sync_s, optimizer_s, allocated_mib, reserved_mib, zero_share, batch, flags. NaN means not
measured; a loss or norm that was not measured is told by its flag: NaN is a value there."""

HAS_LOSS = 1
HAS_GRAD_NORM = 2
IS_WARMUP = 4
INPUT_NON_FINITE = 8
PARAMETERS_NON_FINITE = 16
LOSS_NON_FINITE = 32
GRADIENT_NON_FINITE = 64
UPDATE_LEFT_OUT = 128
IS_SCALED = 256


def block_bytes(num_slots: int) -> int:
    """Size of a block with room for ``num_slots`` records, in bytes."""
    return HEADER_BYTES + num_slots * RECORD.size
