"""What a rank and its node's monitor say to each other over their local socket."""

from typing import Any

import msgspec

from slav1.session.parts import Part

MAX_BYTES = 1 << 18
"""Longest that is read at once, in bytes; the socket keeps whole what was sent at once."""


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
    can_roll_back: bool = False
    """Whether the host can go back to a checkpoint."""


class Failure(msgspec.Struct, tag=True, kw_only=True):
    """An exception is on its way out of training on this rank."""

    error: str
    step: int | None


class Note(msgspec.Struct, tag=True, kw_only=True):
    """Something the host noticed that belongs into the ledger."""

    message: str
    step: int | None = None
    evidence: dict[str, Any] = {}
    kind: str = "notice"
    """Kind of the ledger line."""
    rule: str | None = None


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
    number: int = 0
    """Counts the questions of this rank; comes back with the answer."""


class Meet(msgspec.Struct, tag=True, kw_only=True):
    """The rank comes to a meeting of all ranks and waits for what each one brought."""

    number: int
    """Counts the questions of this rank; comes back with the answer."""
    topic: str
    count: int
    """Counts the meetings with this topic, from 0."""
    limit_s: float
    """How long the rank waits for the others, in seconds."""
    value: bytes
    """What it brings, encoded."""


class AskDecision(msgspec.Struct, tag=True, kw_only=True):
    """The rank was handed an action and wants to know what for."""

    number: int
    """Counts the questions of this rank; comes back with the answer."""
    decision: int
    """Number of the decision."""


class WentBack(msgspec.Struct, tag=True, kw_only=True):
    """The rank goes on from a checkpoint once this is taken in."""

    number: int
    """Counts the questions of this rank; comes back with the answer."""
    to_step: int
    """Last step that the checkpoint contains."""
    state: Any = None
    """Detector memories of the checkpoint; None if it has none, or another rank sends
    them."""


class Want(msgspec.Struct, tag=True, kw_only=True):
    """The host asks for a rollback of all ranks."""

    reason: str
    step: int | None
    onset_step: int | None


class Copies(msgspec.Struct, tag=True, kw_only=True):
    """Tensors of this rank of which other ranks hold copies; said before the first digests."""

    identity: str
    """Equal on ranks whose tensors are of the same names, shapes and layout."""
    ranks: list[int]
    """Global ranks that hold the copies."""
    slots: list[int]
    """For each tensor the share of them that it is looked at with."""
    every_steps: int
    names: list[tuple[str, str]] = []
    """Parameter and kind of each tensor; only from the lowest of the ranks."""
    is_trained: bool = True
    """Whether an optimizer updates them; those that none does are kept apart from the others."""
    is_certain: bool = True
    """Whether no way is known by which they could come to differ in health."""
    left_out: list[str] = []
    """What is not compared and why."""


class Digests(msgspec.Struct, tag=True, kw_only=True):
    """What some of these tensors hold after a step."""

    identity: str
    step: int
    slots: list[int]
    values: bytes
    """Eight bytes for each tensor of these slots, in order."""


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
    number: int = 0
    """Number of the question."""


class Met(msgspec.Struct, tag=True, kw_only=True):
    """What became of a meeting, the same for every rank that came."""

    number: int
    """Number of the question."""
    values: list[bytes] = []
    """What each rank brought, in rank order; none if the meeting failed."""
    arrived: list[int] = []
    missing: list[int] = []
    reason: str = ""
    """Why the meeting failed; empty if it did not."""


class Decided(msgspec.Struct, tag=True, kw_only=True):
    """What a decision is for."""

    number: int
    """Number of the question."""
    decision: int
    """Number of the decision; 0 if the one asked for is not known any more."""
    rule: str = ""
    rank: int | None = None
    reason: str = ""


class Taken(msgspec.Struct, tag=True, kw_only=True):
    """The monitor has taken in what the rank said."""

    number: int
    """Number of the question."""


class Farewell(msgspec.Struct, tag=True, kw_only=True):
    """The monitor has read everything and will not signal this process again."""


FromRank = (
    Hello
    | Failure
    | Note
    | Facts
    | Restore
    | AskState
    | Meet
    | AskDecision
    | WentBack
    | Want
    | Copies
    | Digests
    | Goodbye
    | Part
)
FromMonitor = Welcome | Refused | State | Met | Decided | Taken | Farewell | Part

# What a host notes may hold values of its own kinds; their text will do.
encode = msgspec.msgpack.Encoder(enc_hook=str).encode
decode_from_rank = msgspec.msgpack.Decoder(FromRank).decode
decode_from_monitor = msgspec.msgpack.Decoder(FromMonitor).decode


def gate_address(token: str, node: int) -> str:
    """Name of a node's local socket: abstract, so that no file is left behind."""
    return f"\0slav1-{token[:16]}-{node}"
