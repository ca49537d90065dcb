"""Public cases of what looks like trouble and is none, on two real ranks."""

from typing import Any

import pytest

from slav1.recorder import read_ring_file

from ._runs import entries, run_folders, told

pytestmark = [pytest.mark.ranks, pytest.mark.slow]


def test_pc08_the_callback_adds_no_collective(ranks: Any) -> None:
    """
    A watched training with accumulation, validations and saves makes exactly as many
    collectives as the same one without the callback, on every rank alike.
    """
    ended = ranks("collectives.py")

    assert ended.succeeded(), ended
    counts = [
        (told(out, name)["training"], told(out, name)["all"])
        for out in ended.out.values()
        for name in ("without", "with")
    ]
    assert len(set(counts)) == 1, counts
    assert counts[0][0] > 40


@pytest.mark.thorough
def test_pc30_compiling_is_neither_a_hang_nor_a_slow_rank(ranks: Any) -> None:
    """
    A first step, a validation, and one later step on rank 1 only that take three times the
    limit because they compile are no hang, make no straggler and do not spoil what is usual;
    the rank that is slow in every step afterwards is found.
    """
    ended = ranks("compiling.py")

    assert ended.succeeded(), ended
    assert [told(out, "compiles")["step"] for out in ended.out.values()] == [0, 60]
    assert entries(ranks.run_dir, "incident_begin", rule="hang") == []
    found = entries(ranks.run_dir, "breach", rule="straggler")
    assert {line.rank for line in found} == {1}
    assert min(line.step for line in found) > 180
    (folder,) = run_folders(ranks.run_dir)
    times_s = sorted(sample.step_time_s for sample in read_ring_file(folder / "ring-0.bin"))
    assert times_s[len(times_s) // 2] < 0.2


@pytest.mark.thorough
def test_long_ends_and_beginnings_of_epochs_are_no_hang(ranks: Any) -> None:
    """
    Workers that start anew in each epoch, and a hook at its end, that take over the limit of a
    step report nothing, and are no evaluations.
    """
    ended = ranks("epochs.py", num_ranks=1)

    assert ended.succeeded(), ended
    assert told(ended.out[0], "trained")["num_steps"] == 120
    assert entries(ranks.run_dir, "incident_begin", "breach", rule="hang") == []
