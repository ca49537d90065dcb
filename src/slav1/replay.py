"""Runs detectors over a recorded series instead of a running job."""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TypeAlias

from slav1.breach import Breach
from slav1.detectors._detector import Detector
from slav1.sample import Round, Sample

Value: TypeAlias = float | str
"""One cell of a series: a number, or the name of a segment."""

NEEDED_COLUMNS = ("step", "loss")
OPTIONAL_COLUMNS = ("grad_norm", "mem_allocated_mib", "iteration_time_s")
SEGMENT_COLUMN = "segment"


class SeriesError(ValueError):
    """A recorded series cannot be read.

    Attributes:
        path: The file.
        line: Line of the file, from 1; None if it is about the whole file.
    """

    def __init__(self, path: Path, problem: str, *, line: int | None = None) -> None:
        place = f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{place}: {problem}")
        self.path = path
        self.line = line


def read_series(path: Path) -> list[dict[str, Value]]:
    """Reads a CSV file of one row a step, with a header line.

    Args:
        path: UTF-8 text, with or without a byte order mark. The columns ``step`` and
            ``loss`` are needed, ``grad_norm``, ``mem_allocated_mib``,
            ``iteration_time_s`` and ``segment`` are used, others are left out. ``nan`` and
            ``inf`` are numbers. Steps may have gaps and may repeat.

    Returns:
        One dict a row, in the order of the file; a cell that is empty in an optional
        column is missing from it.

    Raises:
        SeriesError: If the file is no such series; the text says where and why.
        OSError: If the file cannot be opened.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(_rows(path, csv.DictReader(file, strict=True, skipinitialspace=True)))
    except UnicodeDecodeError as error:
        raise SeriesError(path, f"is not UTF-8 text ({error.reason}); save it as CSV.") from error
    except csv.Error as error:
        raise SeriesError(path, f"is not a CSV file: {error}.") from error
    if not rows:
        raise SeriesError(path, "has no rows; a header line and one row a step are needed.")
    return rows


def replay(rows: Iterable[Mapping[str, Value]], detectors: Sequence[Detector]) -> Iterator[Breach]:
    """Shows a recorded series to detectors, one row after the other, without looking ahead.

    A row becomes the sample of rank 0 in a job of one rank. Each segment is a run of its
    own: every detector starts anew, and findings name the segment in their evidence.

    Args:
        rows: As :func:`read_series` gives them.
        detectors: Those that watch samples or rounds are shown the rows; there are no
            pulses in a series.

    Yields:
        Findings, in the order of the rows and, within one, of the detectors.
    """
    for segment, run in groupby(rows, key=lambda row: row.get(SEGMENT_COLUMN)):
        for breach in _replay_run(run, detectors):
            if segment is None:
                yield breach
            else:
                yield replace(breach, evidence={**breach.evidence, "segment": str(segment)})


def takes_rows(detector: Detector) -> bool:
    """Whether a detector watches what a row of a series becomes."""
    return Sample in detector.WATCHES or Round in detector.WATCHES


def num_steps_back(rows: Sequence[Mapping[str, Value]]) -> int:
    """Counts the rows of a series whose step is no higher than that of the row before in
    the same segment."""
    return sum(
        after["step"] <= before["step"]  # type: ignore[operator]
        for before, after in pairwise(rows)
        if before.get(SEGMENT_COLUMN) == after.get(SEGMENT_COLUMN)
    )


def _replay_run(
    rows: Iterable[Mapping[str, Value]], detectors: Sequence[Detector]
) -> Iterator[Breach]:
    states: list[Any] = [detector.start() for detector in detectors]
    time_s = 0.0
    for row in rows:
        time_s += _duration_s(row)
        sample = _sample(row, time_s)
        round_ = Round(step=sample.step, samples=(sample,))
        for i, detector in enumerate(detectors):
            for event in (sample, round_):
                if isinstance(event, detector.WATCHES):
                    states[i], breach = detector.observe(states[i], event)
                    if breach is not None:
                        yield breach


def _sample(row: Mapping[str, Value], time_s: float) -> Sample:
    norm, duration_s = row.get("grad_norm"), row.get("iteration_time_s")
    allocated_mib = row.get("mem_allocated_mib")
    return Sample(
        rank=0,
        step=int(row["step"]),
        time_s=time_s,
        loss=float(row["loss"]),
        grad_norm=None if norm is None else float(norm),
        step_time_s=None if duration_s is None else float(duration_s),
        allocated_mib=None if allocated_mib is None else float(allocated_mib),
    )


def _duration_s(row: Mapping[str, Value]) -> float:
    """Time that a row took; a second where nothing usable is recorded."""
    duration_s = float(row.get("iteration_time_s", 1.0))
    return duration_s if 0.0 <= duration_s < math.inf else 1.0


def _rows(path: Path, reader: "csv.DictReader[str]") -> Iterator[dict[str, Value]]:
    columns = reader.fieldnames
    if not columns:
        raise SeriesError(path, "is empty; a header line and one row a step are needed.")
    for name in NEEDED_COLUMNS:
        if name not in columns:
            raise SeriesError(
                path, f"has no column {name!r}; its columns are {', '.join(columns)}."
            )
    for cells in reader:
        yield _row(path, reader.line_num, cells, columns)


def _row(
    path: Path, line: int, cells: Mapping[str | None, Any], columns: Sequence[str]
) -> dict[str, Value]:
    num_cells = sum(cells[name] is not None for name in columns) + len(cells.get(None, ()))
    if num_cells != len(columns):
        problem = f"has {num_cells} cells, but the header line has {len(columns)}."
        raise SeriesError(path, problem, line=line)
    step = _number(path, line, "step", cells["step"])
    if not step.is_integer() or step < 0:
        problem = f"step must be a whole number from 0 on, got {cells['step']!r}."
        raise SeriesError(path, problem, line=line)
    row: dict[str, Value] = {"step": int(step), "loss": _number(path, line, "loss", cells["loss"])}
    for name in OPTIONAL_COLUMNS:
        if (cells.get(name) or "").strip():
            row[name] = _number(path, line, name, cells[name])
    if cells.get(SEGMENT_COLUMN):
        row[SEGMENT_COLUMN] = cells[SEGMENT_COLUMN]
    return row


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        problem = f"{column} must be a number, got {text!r}."
        raise SeriesError(path, problem, line=line) from None
