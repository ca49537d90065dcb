"""The figures of a run from its folder, and of a rank from its ring."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slav1.ledger import Entry, LedgerWriter
from slav1.metrics import RankFigures, of_run
from slav1.recorder import Block, Recorder, layout


def line(seconds: float, kind: Any, **values: Any) -> Entry:
    return Entry(time_ns=int(seconds * 1e9), attempt=0, kind=kind, **values)


def write_run(folder: Path, *lines: Entry) -> None:
    folder.mkdir(parents=True)
    writer = LedgerWriter(folder / "ledger.jsonl", on_trouble=pytest.fail)
    for each in lines:
        writer.write(each)
    writer.close()


@pytest.fixture
def block() -> Iterator[Block]:
    block = Block.create(rank=1, num_slots=64)
    yield block
    block.close()


def record(recorder: Recorder, step: int, **values: Any) -> None:
    flags = layout.HAS_LOSS if "loss" in values else 0
    recorder.publish(recorder.end_step(step, flags=flags, **values))


def figures(run_dir: Path) -> dict[str, float]:
    return {name: value.item() for name, value in of_run(run_dir).compute().items()}


def test_ledger_tells_the_figures_of_a_run(tmp_path: Path) -> None:
    """
    A run of 1,000 s with a hang of 40 s, found after 10 s and recovered from within these 40 s
    and 20 s more, was available for 960 s and useful for 940 s; 3 of its 4 saves succeeded.
    """
    hang = {"rule": "hang", "rank": 1}
    saved = [line(100.0 * i, "checkpoint_committed", step=i) for i in range(1, 4)]
    failed = line(350, "checkpoint_rejected", step=4, evidence={"num_failed_in_row": 1})
    passed_over = line(351, "checkpoint_rejected", step=4, evidence={"reason": "not healthy"})
    write_run(
        tmp_path / "run",
        line(0, "start"),
        *saved,
        failed,
        passed_over,
        line(510, "incident_begin", evidence={"seconds_since_progress": 10.0}, **hang),
        line(540, "incident_end", evidence={"seconds": 30.0}, **hang),
        line(560, "incident_end", rule="recovery_time", step=9, evidence={"seconds": 60.0}),
        line(1000, "end"),
    )

    told = figures(tmp_path)

    assert told["availability"] == pytest.approx(0.96)
    assert told["checkpoint_success"] == 0.75
    assert told["useful_time_ratio"] == pytest.approx(0.94)
    assert math.isnan(told["sync_latency_p99_s"]) and math.isnan(told["loss_variance"])


def test_what_never_ended_lasts(tmp_path: Path) -> None:
    """
    A rank that was lost keeps the run unavailable until it is started again, and one that no
    run came back from until the ledger ends.
    """
    lost = {"rule": "liveness", "rank": 0, "step": 3, "evidence": {"seconds_since_progress": 0.0}}
    write_run(
        tmp_path / "run",
        line(0, "start"),
        line(100, "incident_begin", **lost),
        line(150, "start"),
        line(180, "incident_begin", **lost),
        line(180, "breach", **lost),
        line(181, "decision", rule="liveness", action="stop", step=3),
        line(200, "end"),
    )

    told = figures(tmp_path / "run")

    assert told["availability"] == pytest.approx(0.65)
    assert told["useful_time_ratio"] == pytest.approx(0.65)


def test_newest_run_is_taken_and_none_is_an_error(tmp_path: Path) -> None:
    """
    A folder of runs stands for the newest one; one without a run is an error that says what
    to give.
    """
    with pytest.raises(FileNotFoundError, match="give a run folder"):
        of_run(tmp_path)
    write_run(tmp_path / "a", line(0, "start"))
    write_run(tmp_path / "b", line(0, "start"), line(1, "checkpoint_committed", step=1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "ledger.jsonl").touch()
    for number, name in enumerate(("a", "empty", "b")):
        os.utime(tmp_path / name / "ledger.jsonl", (number, number))

    assert figures(tmp_path)["checkpoint_success"] == 1.0
    assert all(math.isnan(value) for value in figures(tmp_path / "empty").values())


def test_rings_give_the_worst_slope(tmp_path: Path, block: Block) -> None:
    """
    From the rings come wait, noise and slope; the slope is that of the rank that grows most.
    """
    write_run(tmp_path / "run", line(0, "start"))
    recorder = Recorder(block)
    for step in range(20):
        record(recorder, step, loss=float(step % 2), allocated_mib=100.0 + 2.0 * step)
    block.save(tmp_path / "run" / "ring-1.bin")

    told = figures(tmp_path / "run")

    assert told["memory_slope_mib"] == pytest.approx(2.0)
    assert told["loss_variance"] == pytest.approx(1 / (2 * 0.67449**2), rel=0.02)


def test_rank_figures_count_each_step_once(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A rank's figures take in each record once, count steps made again as no useful time, and
    leave out what nothing is known of.
    """
    now_s = 0.0
    monkeypatch.setattr("slav1.metrics.rank.monotonic", lambda: now_s)
    recorder = Recorder(block)
    of_rank = RankFigures(recorder)
    took_s = {"step_time_s": 0.0}
    assert of_rank.read() == {}

    def steps(first: int, stop: int) -> None:
        for step in range(first, stop):
            record(recorder, step, loss=float(step % 2))
            sample = recorder.last_sample()
            assert sample is not None and sample.step_time_s is not None
            took_s["step_time_s"] += sample.step_time_s

    steps(0, 10)
    now_s = took_s["step_time_s"] * 2
    first = of_rank.read()
    useful_s = took_s["step_time_s"]
    steps(5, 10)
    now_s = useful_s * 4
    again = of_rank.read()

    assert first["useful_time_ratio"] == pytest.approx(0.5)
    assert again["useful_time_ratio"] == pytest.approx(0.25)
    assert set(first) == {"loss_variance", "useful_time_ratio"}
