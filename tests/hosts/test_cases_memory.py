"""Public cases of memory that grows, and of memory that only seems to, in a real training."""

from typing import Any

import pytest

from ._runs import entries

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.thorough]


def found_in(ranks: Any, case: str) -> list[Any]:
    ended = ranks("memory.py", case, ranks.folder, num_ranks=1, timeout_s=280)

    assert ended.succeeded(), ended
    return entries(ranks.run_dir, "breach", rule="memory_drift")


def test_pc10_graphs_that_are_kept_are_found(ranks: Any) -> None:
    """
    A list that keeps outputs of 1 MiB with their graphs is told within about 200 steps after
    the warm-up, once: host memory, slope, number of steps, and how long it can go on.
    """
    (breach,) = found_in(ranks, "step")

    assert breach.step <= 340
    assert (breach.evidence["series"], breach.evidence["per"]) == ("host", "step")
    assert breach.statistic == pytest.approx(1.0, rel=0.3)
    assert breach.evidence["num_steps"] >= 150
    assert breach.evidence["seconds_left"] > 0


@pytest.mark.parametrize("case", ["epoch", "reset"])
def test_pc10_pc12_what_an_epoch_gives_back_is_silent(ranks: Any, case: str) -> None:
    """
    Lists that are emptied at the end of each epoch are no drift.
    """
    assert found_in(ranks, case) == []


def test_pc11_a_staircase_is_told_by_checkpoint(ranks: Any) -> None:
    """
    20 MiB that stay after each save are told as about 20 MiB per checkpoint.
    """
    breach = found_in(ranks, "save")[0]

    assert breach.evidence["per"] == "save"
    assert breach.evidence["per_event"] == pytest.approx(20.0, abs=3.0)


def test_pc12_predictions_that_are_never_reset_are_told_by_epoch(ranks: Any) -> None:
    """
    A metric that keeps 8 MiB of each validation is told after a few epochs, by epoch.
    """
    breach = found_in(ranks, "never_reset")[0]

    assert breach.evidence["per"] == "epoch"
    assert breach.evidence["per_event"] == pytest.approx(8.0, abs=2.0)
    assert breach.evidence["together_with"] == ["evaluation"]
