"""Reading a recorded series and showing it to detectors."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from slav1.breach import Breach
from slav1.detectors import HangLearned, LossVarianceSequential, NonFinite
from slav1.replay import SeriesError, read_series, replay
from slav1.sample import Round, Sample


class LogState(NamedTuple):
    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Says what it is shown, and how much of it there was."""

    RULE: ClassVar[str] = "log"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample, Round)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

    def start(self) -> LogState:
        return LogState()

    def observe(self, state: LogState, event: Sample | Round) -> tuple[LogState, Breach | None]:
        breach = Breach(
            rule="log",
            rank=0,
            step=event.step,
            statistic=state.num_seen,
            limit=None,
            unit="events",
            message="Seen.",
            evidence={"event": repr(event), "is_round": isinstance(event, Round)},
        )
        return LogState(state.num_seen + 1), breach


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "series.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_reads_what_it_knows(tmp_path):
    """
    Known columns become numbers, empty optional cells and unknown columns are left out, the
    segment stays text, and a byte order mark does not matter.
    """
    path = written(
        tmp_path,
        "\ufeffsegment,step, loss,grad_norm,color,iteration_time_s\n"
        "a,1,2.5,,red,0.5\na,2,nan,0.1,blue,\n",
    )

    assert repr(read_series(path)) == repr(
        [
            {"step": 1, "loss": 2.5, "iteration_time_s": 0.5, "segment": "a"},
            {"step": 2, "loss": float("nan"), "grad_norm": 0.1, "segment": "a"},
        ]
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("step,loss\n", "has no rows"),
        ("step,value\n1,2\n", "has no column 'loss'; its columns are step, value"),
        ("step;loss\n1;2\n", "has no column 'step'"),
        ("step,loss\n1,2.0\n2,high\n", "line 3: loss must be a number, got 'high'"),
        ("step,loss\n1,\n", "line 2: loss must be a number, got ''"),
        ("step,loss,grad_norm\n1,2,x\n", "line 2: grad_norm must be a number, got 'x'"),
        ("step,loss\n1.5,2.0\n", "line 2: step must be a whole number from 0 on, got '1.5'"),
        ("step,loss\n-1,2.0\n", "line 2: step must be a whole number"),
        ("step,loss\ninf,2.0\n", "line 2: step must be a whole number"),
        ("step,loss\n1\n", "line 2: has 1 cells, but the header line has 2"),
        ("step,loss\n1,2,3\n", "line 2: has 3 cells, but the header line has 2"),
        (b"step,loss\n1,\xff\n", "is not UTF-8 text"),
        ('step,loss\n1,"2\n', "is not a CSV file"),
    ],
)
def test_says_what_is_wrong(tmp_path, text, problem):
    """
    A file that is no series is refused with the place, what was found and what is needed.
    """
    path = written(tmp_path, text)

    with pytest.raises(SeriesError) as caught:
        read_series(path)

    assert str(path) in str(caught.value)
    assert problem in str(caught.value)
    assert caught.value.path == path


def test_a_row_becomes_the_sample_and_the_round_of_rank_0():
    """
    Each row is shown once as a sample and once as a round, with everything that was
    recorded; durations add up to a clock.
    """
    rows = [
        {"step": 4, "loss": 2.0, "grad_norm": 0.3, "iteration_time_s": 0.5},
        {"step": 9, "loss": 1.9, "iteration_time_s": 0.25},
    ]

    found = list(replay(rows, [Log()]))

    first = Sample(rank=0, step=4, time_s=0.5, loss=2.0, grad_norm=0.3, step_time_s=0.5)
    assert [b.evidence["is_round"] for b in found] == [False, True, False, True]
    assert found[0].evidence["event"] == repr(first)
    assert found[1].evidence["event"] == repr(Round(step=4, samples=(first,)))
    assert "time_s=0.75" in str(found[2].evidence["event"])


def test_findings_keep_the_order_of_rows_and_detectors():
    """
    Nothing is sorted: steps may repeat after a rollback, and of one row the first
    detector's findings come first.
    """
    rows = [{"step": step, "loss": float("nan") if step == 2 else 1.0} for step in (1, 2, 3, 1)]

    found = list(replay(rows, [Log(), NonFinite()]))

    assert [(b.rule, b.step) for b in found] == [
        ("log", 1),
        ("log", 1),
        ("log", 2),
        ("log", 2),
        ("non_finite", 2),
        ("log", 3),
        ("log", 3),
        ("log", 1),
        ("log", 1),
    ]


def test_each_segment_is_a_run_of_its_own():
    """
    Memory starts anew with each segment, and findings say which one they belong to.
    """
    rows = [{"step": i, "loss": 1.0, "segment": name} for name in "ab" for i in range(2)]

    found = list(replay(rows, [Log()]))

    assert [(b.statistic, b.evidence["segment"]) for b in found] == [
        *[(i, "a") for i in range(4)],
        *[(i, "b") for i in range(4)],
    ]


def test_does_not_look_ahead():
    """
    A finding comes out before the next row is taken in.
    """
    taken = []

    def rows():
        for step in range(3):
            taken.append(step)
            yield {"step": step, "loss": float("nan")}

    found = replay(rows(), [NonFinite()])
    assert next(found).step == 0
    assert taken == [0]


def test_detectors_of_pulses_are_silent():
    """
    A series has no pulses: what needs them says nothing, also about slow steps.
    """
    rows = [{"step": i, "loss": 1.0, "iteration_time_s": 130.0} for i in range(100)]

    assert list(replay(rows, [HangLearned(), LossVarianceSequential()])) == []
