"""What can go wrong with checkpoints, one class for each thing a caller does about it."""

from collections.abc import Mapping, Sequence
from pathlib import Path


class CheckpointError(RuntimeError):
    """Something is wrong with a checkpoint; raised on all ranks or on none."""


class SaveFailedError(CheckpointError):
    """A save did not become a checkpoint. What was there before is untouched.

    Attributes:
        path: Where the checkpoint should have come to be.
        step: Last optimizer step of the state.
        reason: What went wrong, in words.
        ranks: Ranks where it went wrong, ascending.
        is_skewed: Whether ranks are more than one step apart, so that going on makes no
            sense: the run has to go back to its last good checkpoint.
        has_quorum: Whether enough ranks held the same state. False asks for a rollback too.
    """

    def __init__(
        self,
        *,
        path: Path,
        step: int,
        reason: str,
        ranks: Sequence[int] = (),
        is_skewed: bool = False,
        has_quorum: bool = True,
    ) -> None:
        where = f" on ranks {sorted(ranks)}" if ranks else ""
        super().__init__(
            f"{path} (step {step}) was not saved{where}: {reason} Nothing that was there before "
            "has been changed."
        )
        self.path = path
        self.step = step
        self.reason = reason
        self.ranks = tuple(sorted(ranks))
        self.is_skewed = is_skewed
        self.has_quorum = has_quorum


def too_many_failed(num_in_row: int) -> str:
    """Why a failed save ends training, after so many steps that could not be saved."""
    return (
        f"{num_in_row} steps in a row could not be saved, and checkpoint.max_failed_saves in the "
        "contract lets no more fail: training ends rather than go on without a way back."
    )


class CheckpointDamagedError(CheckpointError):
    """A checkpoint is not what was committed; nothing of it has been loaded.

    Attributes:
        path: The checkpoint.
        member: The file in it that is wrong, ``.`` for a checkpoint of one file.
        check: What failed: ``missing``, ``size``, ``digest``, ``manifest``, ``unreadable``.
        reason: What was expected and found, in words.
    """

    def __init__(self, *, path: Path, member: str, check: str, reason: str) -> None:
        named = "" if member == "." else f", member {member}"
        super().__init__(
            f"{path}{named} is damaged (check: {check}): {reason} Nothing of it was loaded. "
            "Resume from another checkpoint, or with 'last_good' from the newest that verifies."
        )
        self.path = path
        self.member = member
        self.check = check
        self.reason = reason


class NoGoodCheckpointError(CheckpointError):
    """The run has checkpoints, and none of them can be used.

    Attributes:
        rejected: Why, by checkpoint.
    """

    def __init__(self, rejected: Mapping[Path, str]) -> None:
        lines = "".join(f"\n  {path}: {reason}" for path, reason in rejected.items())
        super().__init__(
            "This run has checkpoints and none of them can be used, so it does not start: "
            f"training from scratch is never begun unasked.{lines}\n"
            "Name a checkpoint yourself, or start without one if from scratch is what you want."
        )
        self.rejected = dict(rejected)


class WorldSizeError(CheckpointError):
    """A checkpoint is whole, but made by another number of ranks than can load it.

    Attributes:
        path: The checkpoint.
        saved: How many ranks wrote it.
        present: How many ranks there are now.
    """

    def __init__(self, *, path: Path, saved: int, present: int) -> None:
        super().__init__(
            f"{path} is whole, but it was written by {saved} ranks and there are {present} now, "
            f"and its format can't be spread anew. Start with {saved} ranks, or convert it."
        )
        self.path = path
        self.saved = saved
        self.present = present
