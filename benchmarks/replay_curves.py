"""What the loss rules say about recorded trainings, as Markdown.

python benchmarks/replay_curves.py
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _machine import heading

from slav1.breach import Breach, Status
from slav1.detectors import LossVarianceLiteral, LossVarianceSequential
from slav1.replay import read_series, replay

CURVES = Path(__file__).parents[1] / "tests" / "data" / "loss_curves"
EXCERPTS = ("bloom_176b_spike_excerpt.csv", "bigscience_104b_divergence_excerpts.csv")
LONGEST_LIST = 8


def main() -> None:
    print(heading("Recorded trainings: what the loss rules say"))
    print("| series | rows | rule | notices | breaches and recoveries | us a row |")
    print("| --- | --- | --- | --- | --- | --- |")
    for path in sorted(CURVES.glob("*.csv")):
        for name, rows in runs(path):
            for rule in (LossVarianceSequential(), LossVarianceLiteral()):
                began = time.perf_counter()
                found = list(replay(rows, [rule]))
                spent_us = (time.perf_counter() - began) / len(rows) * 1e6
                notices = [b for b in found if b.status is Status.NOTICE]
                others = [b for b in found if b.status is not Status.NOTICE]
                print(
                    f"| {name} | {len(rows):,} | {rule.VARIANT} | {listed(notices)} | "
                    f"{listed(others)} | {spent_us:.0f} |"
                )


def runs(path: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """The runs of a file; in front of each excerpt a made-up healthy history."""
    rows: list[dict[str, Any]] = list(read_series(path))
    if path.name not in EXCERPTS:
        return [(path.stem, rows)]
    names = dict.fromkeys(str(row.get("segment", "")) for row in rows)
    return [
        (
            f"{path.stem} {name}",
            with_history([r for r in rows if str(r.get("segment", "")) == name]),
        )
        for name in names
    ]


def with_history(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """200 steps at 2.21 with gradient norm 0.2, or at the first value of the segment."""
    rng = random.Random(0)
    first = rows[0]
    history = []
    for i in range(200):
        row = {"step": first["step"] - 200 + i, "loss": rng.gauss(2.21, 0.02)}
        if "segment" in first:
            row |= {"segment": first["segment"], "loss": first["loss"] * rng.gauss(1.0, 0.01)}
        else:
            row["grad_norm"] = max(0.01, rng.gauss(0.2, 0.05))
        history.append(row)
    return [*history, *rows]


def listed(found: Sequence[Breach]) -> str:
    texts = [f"{b.step} {b.evidence.get('kind')} ({b.status.value})" for b in found]
    more = len(texts) - LONGEST_LIST
    return ", ".join(texts[:LONGEST_LIST]) + (f" and {more} more" if more > 0 else "") or "none"


if __name__ == "__main__":
    main()
