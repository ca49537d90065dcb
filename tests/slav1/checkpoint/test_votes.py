"""The vote: quorum of replicated states, unanimity of sharded ones, version skew."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slav1.checkpoint import Vote, judge_votes

from ._shelves import facts


def votes(roots: str, *, steps: list[int] | None = None) -> list[Vote]:
    """One vote a letter; a capital one is not verified."""
    return [
        Vote(
            rank=rank,
            step=steps[rank] if steps else 7,
            root=root.lower(),
            is_verified=root.islower(),
        )
        for rank, root in enumerate(roots)
    ]


@pytest.mark.parametrize(
    ("roots", "kind", "quorum", "is_committed", "ranks"),
    [
        ("a", "replicated", "majority", True, ()),
        ("aa", "replicated", "majority", True, ()),
        ("ab", "replicated", "majority", False, (1,)),
        ("aab", "replicated", "majority", True, (2,)),
        ("aab", "replicated", "all", False, (2,)),
        ("abb", "replicated", "majority", False, (1, 2)),
        ("aabb", "replicated", "majority", False, (2, 3)),
        ("aaab", "replicated", "majority", True, (3,)),
        ("aaA", "replicated", "majority", True, (2,)),
        ("aAA", "replicated", "majority", False, (1, 2)),
        ("aaa", "sharded", "majority", True, ()),
        ("aaA", "sharded", "majority", False, (2,)),
        ("aab", "sharded", "majority", False, (2,)),
    ],
)
def test_quorum(roots: str, kind: Any, quorum: Any, is_committed: bool, ranks: Any) -> None:
    """
    Replicated states commit at floor(N/2) + 1 votes equal to the writer's, sharded ones when
    all are verified; the ranks that stand out are named.
    """
    verdict = judge_votes(votes(roots), facts(7, kind), quorum=quorum)

    assert (verdict.is_committed, verdict.ranks) == (is_committed, ranks)
    assert verdict.has_quorum == is_committed
    assert bool(verdict.reason) == bool(ranks)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8))
@example([1, 2, 2, 3])
def test_version_skew(steps: list[int]) -> None:
    """
    Ranks more than one step apart are never committed and are named; others are not called
    skewed.
    """
    verdict = judge_votes(votes("a" * len(steps), steps=steps), facts(7))

    is_apart = max(steps) - min(steps) > 1
    assert verdict.is_skewed == is_apart
    if is_apart:
        assert not verdict.is_committed and verdict.ranks
        assert len(verdict.ranks) < len(steps)
