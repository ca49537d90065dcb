"""What a monitor does about memory: reads it, judges it, asks the rank for the code."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slav1.coordinator import messages as job
from slav1.monitor.process_tree import TreeMemory
from slav1.recorder.layout import Word

from ._ranks import Node


@pytest.fixture
def grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node whose rank 0 held 2 MiB more at each of 80 looks, five steps apart."""
    held = iter(range(500, 10_000, 2))
    monkeypatch.setattr(TreeMemory, "read_mib", lambda *_: float(next(held)))
    node = Node(tmp_path)
    trainer, _ = node.join(0)
    for look in range(80):
        for step in range(5 * look, 5 * look + 5):
            trainer.finish_step(step)
            trainer.recorder.starts_at(step + 1)
        node.monitor.on_tick(1_000.0 + 0.05 * look)
    yield node
    node.close()


def test_growing_memory_is_told_once_and_the_rank_is_asked_for_the_code(grown):
    """
    A rank whose memory rises is found by its node's monitor, which tells the coordinator
    once and puts the question for the line of code, for host memory, into the rank's block.
    """
    told = [plain for report in grown.of_kind(job.Report) for plain in report.findings]

    (breach,) = [job.unpack_breach(each) for each in told if each["rule"] == "memory_drift"]
    assert (breach.rank, breach.evidence["series"]) == (0, "host")
    assert breach.statistic == pytest.approx(0.4, rel=0.05)
    assert grown.ranks[0].block.words[Word.ALLOCATIONS_WANTED] == 2


def test_a_rollback_does_not_let_it_be_told_again(grown):
    """
    After a rank went back its rules of steps start afresh, but not the one about memory.
    """
    grown.monitor._lookout.forget_steps(0)
    for look in range(40):
        grown.ranks[0].finish_step(200 + 5 * look)
        grown.ranks[0].recorder.starts_at(201 + 5 * look)
        grown.monitor.on_tick(1_010.0 + 0.05 * look)

    told = [plain for report in grown.of_kind(job.Report) for plain in report.findings]
    assert [plain["rule"] for plain in told].count("memory_drift") == 1
