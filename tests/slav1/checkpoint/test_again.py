"""A save that reads back differently is made once more."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slav1.checkpoint import Disk, SaveFailedError
from slav1.testing import ThreadPeers, run_ranks
from slav1.testing._files import flip_a_bit

from ._shelves import facts, file_writer, folder_writer, shelf_of


def failing(num_times: int) -> Disk:
    """A disk that flips a bit in each of the first files that are flushed to it."""
    flushed: Counter[str] = Counter()

    def damage(path: Path) -> None:
        flushed["files"] += 1
        if flushed["files"] <= num_times:
            flip_a_bit(path)

    return Disk(after_flush=damage)


def test_one_bad_block_costs_no_checkpoint(tmp_path: Path) -> None:
    """
    The first try is refused, the second one counts, on all ranks alike, and the failure
    does not add up with later ones.
    """

    def work(peers: ThreadPeers) -> Any:
        shelf = shelf_of(tmp_path, peers, disk=failing(1) if peers.rank == 0 else None)
        path = tmp_path / "ck" / "last.ckpt"
        commit = shelf.save(path, file_writer(5, peers.rank), facts(5))
        kinds = [kind for kind, _, _ in peers.records] if peers.rank == 0 else []
        return commit.path.read_bytes(), shelf.num_failed_in_row, kinds

    results = run_ranks(work, 2)

    assert [result[:2] for result in results] == [(bytes([5]) * 9000, 0)] * 2
    assert results[0][2] == ["checkpoint_rejected", "checkpoint_committed"]


@pytest.mark.parametrize(("kind", "num_tries"), [("replicated", 2), ("sharded", 1)])
def test_a_bad_disk_is_tried_only_so_often(tmp_path: Path, kind: str, num_tries: int) -> None:
    """
    A disk that damages every file gets a second try where the state is still whole, and
    no third, and that is one failed save; what the host takes apart while it writes is not
    written twice.
    """
    tried = []

    def work(peers: ThreadPeers) -> None:
        shelf = shelf_of(tmp_path, peers, disk=failing(99))

        def write(path: Path) -> None:
            tried.append(path)
            folder_writer(5, peers.rank)(path)

        with pytest.raises(SaveFailedError, match="reads back differently"):
            shelf.save(tmp_path / "ck" / "step-5", write, facts(5, kind))
        assert shelf.num_failed_in_row == 1

    run_ranks(work, 1)

    assert len(tried) == num_tries
