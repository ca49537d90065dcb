"""Gradients that go wrong, in both hosts: left out, recorded, held back, on all ranks alike."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from slav1.checkpoint.verify import verify_path

from ._runs import entries

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


@pytest.mark.parametrize("host", ["lightning", "accelerate"])
def test_two_ranks_meet_three_bad_gradients_and_train_on(ranks: Any, host: str) -> None:
    """
    A NaN on one rank is left out on both before it reaches the weights, a gradient norm that
    leaps leads to a snapshot that nobody resumes from, and one that thins out to a lower
    learning rate for some steps: at the end all steps are made, and weights are finite and the
    same on both ranks, bit for bit.
    """
    ended = ranks("gradients.py", host)

    assert ended.succeeded(), ended
    one, other = [
        json.loads(Path(ranks.run_dir, f"told-{rank}.json").read_text()) for rank in (0, 1)
    ]
    assert one["weights"] == other["weights"]
    assert all(map(math.isfinite, one["weights"]))
    assert one["stopped_at"] is None
    assert one.get("num_seen", 150) == 150
    ledger = entries(ranks.run_dir)
    decisions = [(e.action, e.rank) for e in ledger if e.kind == "decision"]
    assert [action for action, _ in decisions] == ["skip_batches", "snapshot", "clip_and_decay"]
    _is_told_of_the_skip(ledger, decisions)
    _has_a_snapshot(ledger)
    _has_decayed(ledger, one["used"], other["used"])


def _is_told_of_the_skip(ledger: list[Any], decisions: list[Any]) -> None:
    """The rank whose batch was bad is named, its batch too, and the update was left out."""
    bad = next(e for e in ledger if e.kind == "breach" and e.rank == 1)
    assert (bad.rule, bad.step, bad.evidence["batch"]) == ("non_finite", 10, 10)
    assert "the weights are as before" in bad.message
    assert decisions[0] == ("skip_batches", 1)
    assert any("are left out wherever training comes" in (e.message or "") for e in ledger)
    assert not [e for e in ledger if e.kind == "breach" and e.rule == "update_skew"]


def _has_a_snapshot(ledger: list[Any]) -> None:
    """It verifies, says itself that nobody must go on from it, and says what it cost."""
    (notice,) = [e for e in ledger if "A snapshot of the state" in (e.message or "")]
    path = Path(notice.evidence["path"])
    assert path.parent.name == "snapshots"
    assert notice.evidence["blocked_s"] > 0
    report = verify_path(path)
    assert report.problems == ()
    assert report.manifest is not None
    assert not report.manifest.is_healthy


def _has_decayed(ledger: list[Any], *used: list[float]) -> None:
    """All ranks lowered the rate in the same updates, and all others saw the usual one."""
    (decision,) = [e for e in ledger if e.kind == "decision" and e.action == "clip_and_decay"]
    first = decision.step + 1
    lowered = range(first, first + 12)
    for rates in used:
        assert rates == pytest.approx(
            [1e-7 * (0.25 if step in lowered else 1.0) for step in range(150)]
        )
