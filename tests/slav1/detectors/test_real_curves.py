"""The loss rule on recorded trainings: exactly what it says about each."""

import random

import pytest
from _detector_tools import CURVES

from slav1.breach import Status
from slav1.detectors import LossVarianceSequential, NonFinite, SyncLatencyLearned
from slav1.replay import read_series, replay


def told(rows, *, column: str | None = None) -> list[tuple[int | None, str, object]]:
    """Step, status and kind of every finding; without a column, as if it were not recorded."""
    rows = [{name: value for name, value in row.items() if name != column} for row in rows]
    found = replay(rows, [NonFinite(), LossVarianceSequential(), SyncLatencyLearned()])
    return [(b.step, b.status.value, b.evidence["kind"]) for b in found]


def with_history(rows):
    """The excerpts with a made-up healthy run in front of each segment."""
    rng = random.Random(0)
    history, first = [], rows[0]
    for i in range(200):
        row = {**first, "step": first["step"] - 200 + i}
        if "segment" in first:
            row["loss"] = rng.gauss(first["loss"], 0.01 * first["loss"])
            row.pop("grad_norm", None)
        else:
            row["loss"] = rng.gauss(2.21, 0.02)
            row["grad_norm"] = max(0.01, rng.gauss(0.2, 0.05))
        history.append(row)
    return [*history, *rows]


@pytest.mark.slow
@pytest.mark.parametrize("column", [None, "grad_norm"])
def test_clean_run(column):
    """
    Ten thousand healthy steps: two single odd batches are noticed, nothing more, and nothing
    while the loss falls from 11 to 5.
    """
    rows = read_series(CURVES / "gpt2_124m_clean_with_grad_norm.csv")

    assert told(rows, column=column) == [(660, "notice", "outlier"), (7856, "notice", "outlier")]


@pytest.mark.slow
def test_single_odd_batches():
    """
    Outliers of one rank's loss, normal again in the next step, are notices and never more.
    """
    rows = read_series(CURVES / "gpt2_124m_rank0_single_batch_outliers.csv")

    found = told(rows)

    assert {(status, kind) for _, status, kind in found} == {("notice", "outlier")}
    assert [step for step, _, _ in found] == [919, 947, 1760, 3194, 3473, 5335, 5452, 5462]


@pytest.mark.slow
def test_noisy_run_with_slow_waves():
    """
    Nothing at all is said about a healthy run with noise and waves.
    """
    assert told(read_series(CURVES / "bert_20k_run.csv")) == []


@pytest.mark.slow
def test_spike_that_heals():
    """
    The spike at 4050 is a breach at its first sample and closed by 4075; single jumps, the
    one at 2425 among them, are notices; restarts are nothing.
    """
    found = told(read_series(CURVES / "mixtral_8x7b_run_a.csv"))

    assert [event for event in found if event[1] != "notice"] == [
        (4050, "breach", "jump"),
        (4075, "recovered", "recovery"),
    ]
    assert [step for step, status, _ in found if status == "notice"] == [
        2425,
        3735,
        4575,
        5300,
        5875,
    ]


def test_spike_with_its_gradient_norms():
    """
    The gradient norm asks for a snapshot at 31217, two steps before the loss breaches, and the
    recovery is seen at the first sample that is normal again.
    """
    rows = with_history(read_series(CURVES / "bloom_176b_spike_excerpt.csv"))

    assert told(rows) == [
        (31216, "notice", "outlier"),
        (31217, "breach", "grad_norm"),
        (31219, "breach", "jump"),
        (31250, "recovered", "recovery"),
    ]


def test_the_same_spike_without_them():
    """
    The gradient norm is not needed for the breach.
    """
    rows = with_history(read_series(CURVES / "bloom_176b_spike_excerpt.csv"))

    assert told(rows, column="grad_norm") == [
        (31216, "notice", "outlier"),
        (31219, "breach", "jump"),
        (31250, "recovered", "recovery"),
    ]


@pytest.mark.parametrize(
    ("segment", "step"), [("glitch1", 7010), ("glitch2", 6940), ("exp11", 11448), ("exp12", 8741)]
)
def test_divergence(segment, step):
    """
    Each of the four divergences is one breach to act on, and none recovers.
    """
    rows = read_series(CURVES / "bigscience_104b_divergence_excerpts.csv")
    mine = with_history([row for row in rows if row["segment"] == segment])

    found = [b for b in replay(mine, [LossVarianceSequential()]) if b.status is not Status.NOTICE]

    assert [(b.step, b.status, b.is_actionable) for b in found] == [(step, Status.BREACH, True)]
    assert found[0].evidence["segment"] == segment
