"""What is done about a breach, and when."""

from dataclasses import dataclass
from enum import IntEnum


class Action(IntEnum):
    """What training should do, mildest first.

    The order carries meaning: of two actions the higher one is taken.
    """

    LOG = 0
    CLIP_AND_DECAY = 1
    THROTTLE_IO = 2
    SNAPSHOT = 3
    SKIP_BATCHES = 4
    ROLLBACK = 5
    ISOLATE = 6
    STOP = 7
    RESTART = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One action that all ranks carry out at the end of the same step."""

    number: int
    """Counts the decisions of an attempt, from 1."""

    action: Action
    """What to do."""

    rule: str
    """Rule whose breach led here."""

    rank: int | None
    """Rank at fault, if one is."""

    reason: str
    """One sentence for people."""

    step: int | None = None
    """Step at whose end every rank acts; None until it is scheduled."""

    onset_step: int | None = None
    """First step that is bad, as far as is known: a rollback goes to a checkpoint from
    before it."""

    alarm_step: int | None = None
    """Step at which it was found. A rollback leaves out the batches from the onset to it;
    None if it shall leave out none."""
