"""What the monitors of the nodes and the coordinator of the job say to each other."""

from typing import Any

import msgspec

from slav1.breach import Breach, Status
from slav1.phase import Phase
from slav1.sample import Pulse, Sample


class Position(msgspec.Struct, kw_only=True):
    """Where one rank is, with its stack if it could be had."""

    pulse: Pulse
    change: int
    """Counter of the rank's phase changes: equal twice means no progress between."""
    num_batches: int = 0
    """Batches its process has begun."""
    stack: list[str] = []
    """Frames of the training thread as ``file:line function``, innermost first."""
    stack_path: str | None = None
    """File in the run folder that holds the whole dump, if it was written."""


class NodeHello(msgspec.Struct, tag=True, kw_only=True):
    """A node's monitor is there."""

    node: int


class RankJoined(msgspec.Struct, tag=True, kw_only=True):
    """A rank is watched from now on."""

    rank: int
    can_roll_back: bool = False
    """Whether its host can go back to a checkpoint."""


class RankFacts(msgspec.Struct, tag=True, kw_only=True):
    """What all ranks should have in common."""

    rank: int
    num_batches: int | None


class StateRestored(msgspec.Struct, tag=True, kw_only=True):
    """Detector memories of an earlier run, to go on from."""

    state: Any


IN_ORDER = ("finished", "exit")
"""Reasons of a rank that leaves in good order."""


class RankLeft(msgspec.Struct, tag=True, kw_only=True):
    """A rank said goodbye or is gone."""

    rank: int
    is_lost: bool
    """Whether it went without a goodbye."""
    reason: str


class Report(msgspec.Struct, tag=True, kw_only=True):
    """What a node saw since its last report."""

    samples: list[Sample]
    findings: list[dict[str, Any]]
    """Breaches of the node's own detectors, see ``pack_breach``."""


class FirstException(msgspec.Struct, tag=True, kw_only=True):
    """An exception leaves training on a rank."""

    rank: int
    step: int | None
    phase: Phase
    error: str


class RankNote(msgspec.Struct, tag=True, kw_only=True):
    """A rank's host has something for the ledger."""

    rank: int | None
    step: int | None
    message: str
    evidence: dict[str, Any] = {}
    kind: str = "notice"
    rule: str | None = None


class Survey(msgspec.Struct, tag=True, kw_only=True):
    """Answer to ``AskSurvey``: all ranks of the node."""

    number: int
    positions: list[Position]


class Acknowledged(msgspec.Struct, tag=True, kw_only=True):
    """All ranks of the node hold for a decision, or are in a step no later than this."""

    number: int
    step: int


class CarriedOut(msgspec.Struct, tag=True, kw_only=True):
    """A rank did what was decided."""

    number: int
    rank: int
    step: int
    latency_s: float
    """From the schedule's arrival at the rank to the action, in seconds."""


class RankWentBack(msgspec.Struct, tag=True, kw_only=True):
    """A rank goes on from a checkpoint; what it reports from now on is new."""

    rank: int
    to_step: int
    """Last step that the checkpoint contains."""
    state: Any = None
    """Detector memories of the checkpoint; None if it has none, or another rank sends
    them."""


class RankWants(msgspec.Struct, tag=True, kw_only=True):
    """A rank's host asks for a rollback of all ranks."""

    rank: int
    reason: str
    step: int | None
    onset_step: int | None


class RankReplicas(msgspec.Struct, tag=True, kw_only=True):
    """A rank holds copies of tensors that other ranks hold too."""

    rank: int
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


class RankDigests(msgspec.Struct, tag=True, kw_only=True):
    """What a rank's copies hold after a step."""

    rank: int
    identity: str
    step: int
    slots: list[int]
    values: bytes
    """Eight bytes for each tensor of these slots, in order."""


class StateAsked(msgspec.Struct, tag=True, kw_only=True):
    """A rank wants the detector memories for a checkpoint."""

    rank: int
    step: int | None = None
    """Step that they must include; None if it does not matter."""
    number: int = 0
    """Number of the rank's question."""


class RankMeets(msgspec.Struct, tag=True, kw_only=True):
    """A rank has come to a meeting of all ranks, or still waits there."""

    rank: int
    topic: str
    count: int
    """Counts the meetings with this topic, from 0."""
    limit_s: float
    """How long it waits for the others, in seconds."""
    value: bytes
    """What it brings, encoded."""


class NodeDone(msgspec.Struct, tag=True, kw_only=True):
    """The node has no rank left; its counts go into the verdict."""

    num_seen: dict[str, int]
    num_lost: int
    """Steps its monitor came too late to read."""


class Hold(msgspec.Struct, tag=True, kw_only=True):
    """Let your ranks wait at their next boundary."""

    number: int


class Schedule(msgspec.Struct, tag=True, kw_only=True):
    """Let your ranks act at the end of ``step``."""

    number: int
    step: int
    action: int
    rule: str = ""
    rank: int | None = None
    reason: str = ""
    onset_step: int | None = None
    alarm_step: int | None = None


class Release(msgspec.Struct, tag=True, kw_only=True):
    """The decision is withdrawn, or done: let your ranks go on."""

    number: int


class AskSurvey(msgspec.Struct, tag=True, kw_only=True):
    """Look at all your ranks now, stacks included."""

    number: int
    num_told: int = 0
    """Incidents that earlier looks led to; their stack files are kept."""


LEAVE_S = 2.0
"""Time that ranks get to end by themselves after a peer died, in seconds: their own
traceback is worth more than our signal."""


class End(msgspec.Struct, tag=True, kw_only=True):
    """End the processes of your ranks."""

    reason: str
    leave_s: float
    """Time to end by themselves before SIGTERM, in seconds."""


class StateAnswer(msgspec.Struct, tag=True, kw_only=True):
    """The memories a rank asked for."""

    rank: int
    state: Any
    number: int = 0
    """Number of the rank's question."""


class RanksMet(msgspec.Struct, tag=True, kw_only=True):
    """What became of a meeting, for all ranks that came."""

    topic: str
    count: int
    values: list[bytes] = []
    """What each rank brought, in rank order; none if the meeting failed."""
    arrived: list[int] = []
    missing: list[int] = []
    reason: str = ""
    """Why the meeting failed; empty if it did not."""


class Throttle(msgspec.Struct, tag=True, kw_only=True):
    """Let saves of your ranks that run in the background keep this share of their speed."""

    percent: int
    """From 1 to 100; 100 is all of it."""


class Beat(msgspec.Struct, tag=True, kw_only=True):
    """The coordinator lives; comes each second."""


class Dismissed(msgspec.Struct, tag=True, kw_only=True):
    """The coordinator needs this node no longer."""


FromNode = (
    NodeHello
    | RankJoined
    | RankLeft
    | RankFacts
    | StateRestored
    | Report
    | FirstException
    | RankNote
    | Survey
    | Acknowledged
    | CarriedOut
    | StateAsked
    | RankMeets
    | RankWentBack
    | RankWants
    | RankReplicas
    | RankDigests
    | NodeDone
)
FromCoordinator = (
    Hold
    | Schedule
    | Release
    | AskSurvey
    | End
    | StateAnswer
    | RanksMet
    | Throttle
    | Beat
    | Dismissed
)

encode = msgspec.msgpack.Encoder().encode
decode_from_node = msgspec.msgpack.Decoder(FromNode).decode
decode_from_coordinator = msgspec.msgpack.Decoder(FromCoordinator).decode


def pack_breach(breach: Breach) -> dict[str, Any]:
    """Turns a breach into plain values."""
    plain = {name: getattr(breach, name) for name in Breach.__dataclass_fields__}
    plain["status"] = breach.status.value
    plain["phase"] = None if breach.phase is None else int(breach.phase)
    plain["evidence"] = dict(breach.evidence)
    return plain


def unpack_breach(plain: dict[str, Any]) -> Breach:
    """Rebuilds a breach from :func:`pack_breach`."""
    return Breach(
        **{
            **plain,
            "status": Status(plain["status"]),
            "phase": None if plain["phase"] is None else Phase(plain["phase"]),
        }
    )
