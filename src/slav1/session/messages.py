"""What a rank and its node's monitor say to each other over their local socket."""

from typing import Any

import msgspec

MAX_BYTES = 1 << 18
"""Longest message, in bytes; the socket keeps messages whole."""


class Hello(msgspec.Struct, tag=True, kw_only=True):
    """A rank joins. Comes with two descriptors: its block, and its stack file."""

    token: str
    rank: int
    local_rank: int
    pid: int
    thread: int
    """Identifier of the training thread, as stack dumps print it."""
    stack_signal: int
    """Signal that makes the rank write its stacks; 0 if it can't."""


class Failure(msgspec.Struct, tag=True, kw_only=True):
    """An exception is on its way out of training on this rank."""

    error: str
    step: int | None


class Note(msgspec.Struct, tag=True, kw_only=True):
    """Something the host noticed that belongs into the ledger."""

    message: str
    step: int | None = None
    evidence: dict[str, Any] = {}


class Facts(msgspec.Struct, tag=True, kw_only=True):
    """What all ranks should have in common; compared before the first step."""

    num_batches: int | None
    """Batches an epoch has on this rank; None if its data loader has no length."""


class Restore(msgspec.Struct, tag=True, kw_only=True):
    """Detector memories of an earlier run, to go on from."""

    state: Any


class AskState(msgspec.Struct, tag=True, kw_only=True):
    """The rank wants the detector memories, for a checkpoint."""

    step: int | None = None
    """Step that they must include; None if it does not matter."""


class Goodbye(msgspec.Struct, tag=True, kw_only=True):
    """The rank leaves in good order."""

    reason: str


class Welcome(msgspec.Struct, tag=True, kw_only=True):
    """The monitor watches this rank from now on."""


class Refused(msgspec.Struct, tag=True, kw_only=True):
    """The monitor does not take this rank, and why."""

    reason: str


class State(msgspec.Struct, tag=True, kw_only=True):
    """Detector memories as plain values."""

    state: Any


class Farewell(msgspec.Struct, tag=True, kw_only=True):
    """The monitor has read everything and will not signal this process again."""


FromRank = Hello | Failure | Note | Facts | Restore | AskState | Goodbye
FromMonitor = Welcome | Refused | State | Farewell

# What a host notes may hold values of its own kinds; their text will do.
encode = msgspec.msgpack.Encoder(enc_hook=str).encode
decode_from_rank = msgspec.msgpack.Decoder(FromRank).decode
decode_from_monitor = msgspec.msgpack.Decoder(FromMonitor).decode


def gate_address(token: str, node: int) -> str:
    """Name of a node's local socket: abstract, so that no file is left behind."""
    return f"\0slav1-{token[:16]}-{node}"
