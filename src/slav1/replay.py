"""Runs detectors over a recorded series instead of a running job."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from slav1.breach import Breach
from slav1.detectors._detector import Detector

Value = float | str
"""One cell of a series: a number, or the name of a segment."""


def read_series(path: Path) -> list[dict[str, Value]]:
    """Reads a CSV file of one row a step."""
    raise NotImplementedError("Reading a series is not written yet.")


def replay(rows: Iterable[Mapping[str, Value]], detectors: Sequence[Detector]) -> Iterator[Breach]:
    """Shows a recorded series to the detectors, one row after the other."""
    raise NotImplementedError("Replaying a series is not written yet.")
