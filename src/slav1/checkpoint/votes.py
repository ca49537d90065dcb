"""The vote: whether what the ranks hold and have verified makes a checkpoint."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from slav1.checkpoint.facts import SaveFacts

MAX_SKEW_STEPS = 1
"""Ranks further apart than this don't train together any more: contract, section 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What one rank says about a save."""

    rank: int
    """Global rank."""

    step: int
    """Last optimizer step that the rank has in memory."""

    root: str
    """Fingerprint of what has to be equal on all ranks; '' if nothing has to be."""

    is_verified: bool = True
    """Whether its part of the files reads back as it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came out of a vote."""

    is_committed: bool
    """Whether it makes a checkpoint."""

    reason: str = ""
    """Why not, or who was outvoted, in words; '' if all agree."""

    ranks: tuple[int, ...] = ()
    """The ranks that stand out, ascending."""

    is_skewed: bool = False
    """Whether ranks are so many steps apart that the run has to go back."""

    has_quorum: bool = True
    """Whether enough ranks held the same state."""


def judge_votes(
    votes: Sequence[Vote],
    facts: SaveFacts,
    *,
    quorum: Literal["majority", "all"] = "majority",
) -> Verdict:
    """Whether a save becomes a checkpoint.

    A replicated state needs floor(N/2) + 1 verified votes equal to that of the rank that
    wrote it, a sharded one the votes of all ranks.

    Args:
        votes: One of every rank; the first is the one of the rank that writes for all.
        facts: What is being saved.
        quorum: ``all`` asks for every vote of a replicated state too.
    """
    steps = [vote.step for vote in votes]
    if max(steps) - min(steps) > MAX_SKEW_STEPS:
        return _skewed(votes)
    writer = votes[0]
    with_writer = [
        vote.rank
        for vote in votes
        if vote.is_verified and (vote.step, vote.root) == (writer.step, writer.root)
    ]
    others = tuple(sorted({vote.rank for vote in votes} - set(with_writer)))
    needs_all = facts.kind == "sharded" or quorum == "all"
    needed = len(votes) if needs_all else len(votes) // 2 + 1
    if len(with_writer) >= needed:
        return Verdict(is_committed=True, reason=_outvoted(others), ranks=others)
    return Verdict(
        is_committed=False,
        has_quorum=False,
        ranks=others,
        reason=f"Of {len(votes)} ranks {len(with_writer)} hold the same verified state as rank "
        f"{writer.rank}, and {needed} are needed; ranks {list(others)} do not.",
    )


def _skewed(votes: Sequence[Vote]) -> Verdict:
    counted = Counter(vote.step for vote in votes)
    usual = max(counted, key=lambda step: (counted[step], -step))
    apart = {vote.rank: vote.step for vote in votes if vote.step != usual}
    return Verdict(
        is_committed=False,
        is_skewed=True,
        ranks=tuple(sorted(apart)),
        reason=f"Ranks are more than {MAX_SKEW_STEPS} step apart: most are at step {usual}, "
        f"others at {apart} (step by rank).",
    )


def _outvoted(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    return f"Ranks {list(ranks)} hold another state than the majority that was committed."
