"""Trainings of one host on several ranks: an update that is left out, and a stop."""

import os
import sys
import warnings
from pathlib import Path

import toys
from hosts import HOSTS, Ended, Task

from slav1.ledger import read_ledger
from slav1.recorder.ring import read_ring_file

warnings.filterwarnings("ignore")

RANK = int(os.environ["RANK"])


def decisions(ended: Ended) -> list[int | None]:
    """Steps of all decisions."""
    lines = read_ledger(ended.run_folder / "ledger.jsonl")
    return [line.step for line in lines if line.kind == "decision"]


def main() -> None:
    """Trains twice with a bad item on the last rank only."""
    train = HOSTS[sys.argv[1]]
    how = {"bad_items": (21,), "num_batches": 24, "step_s": 0.02}
    task = Task(folder=Path("left-out"), **how)
    ended = train(task)
    assert ended.error is None, ended.error
    found = read_ring_file(ended.run_folder / f"ring-{RANK}.bin")
    toys.tell(
        "left out",
        bad_steps=[batch.step for batch in task.batches if 21 in batch.items],
        weights=[batch.weight for batch in task.batches],
        is_sync_timed=all(one.sync_s is not None for one in found[2:]),
        left_out=[one.step for one in found if one.is_update_left_out],
    )
    task = Task(folder=Path("stopped"), **how)
    task.clauses = {"non_finite": {"action": "stop", "reflex": False}}
    ended = train(task)
    assert ended.error is None, ended.error
    toys.tell(
        "stopped",
        stopped_at=ended.stopped_at,
        last_step=task.batches[-1].step,
        decisions=decisions(ended) if RANK == 0 else None,
    )


if __name__ == "__main__":
    main()
