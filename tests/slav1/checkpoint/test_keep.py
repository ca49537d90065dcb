"""What is kept, what may go, and how often one checkpoint is resumed from."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slav1.checkpoint import Alone, NoGoodCheckpointError
from slav1.checkpoint.retention import removable
from slav1.testing import ThreadPeers, run_ranks

from ._shelves import facts, file_writer, folder_writer, save_folders, shelf_of
from .test_shelf import flip_a_bit


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 4))
def test_newest_good_ones_never_go(is_good: list[bool], num_newer: int) -> None:
    """
    Whatever is good or not, the newest ``num_newer`` good ones stay, and all that is newer.
    """
    entries = list(range(len(is_good)))

    gone = removable(entries, is_good, num_newer)

    kept_good = [one for one in entries if is_good[one] and one not in gone]
    assert len(kept_good) == min(num_newer, sum(is_good))
    assert all(one > max(kept_good) for one in gone)


def test_rotation_keeps_the_only_good_one(tmp_path: Path) -> None:
    """
    PC-01: with 1 good and 2 damaged, a new process that saves once and keeps two numbers on,
    keeps 1, does not count 2, and removes it from the count instead of the good one.
    """
    save_folders(shelf_of(tmp_path, Alone()), tmp_path, [10, 20])
    flip_a_bit(tmp_path / "ck" / "step-20" / "shard_0.bin")
    shelf = shelf_of(tmp_path, Alone(), attempt=1, keep=2)

    save_folders(shelf, tmp_path, [30])
    assert shelf.prune(tmp_path / "ck") == []
    assert shelf.last_good is not None and shelf.last_good.manifest.sequence == 3
    assert names(tmp_path / "ck") == ["step-10", "step-20", "step-30"]

    save_folders(shelf, tmp_path, [40])
    gone = shelf.prune(tmp_path / "ck")
    assert [path.name for path in gone] == ["step-20", "step-10"]
    assert names(tmp_path / "ck") == ["step-30", "step-40"]


@pytest.mark.parametrize("keep", [1, 3])
def test_own_checkpoints_are_pruned(keep: int, tmp_path: Path) -> None:
    """
    Of the callback's own checkpoints those asked for are kept, two at least, however the
    limit reads; a save that fails or is not healthy removes none.
    """
    shelf = shelf_of(tmp_path, Alone(), keep=keep)
    own = tmp_path / "run-1" / "checkpoints"
    for step in (1, 2, 3, 4, 5):
        shelf.save(own / f"s{step}.ckpt", file_writer(step), facts(step))
    kept = [f"s{step}.ckpt" for step in range(6 - max(2, keep), 6)]
    assert names(own) == sorted([*kept, *(f"{name}.sla.json" for name in kept)])

    for step in (6, 7, 8, 9):
        shelf.save(own / f"s{step}.ckpt", file_writer(step), facts(step, is_healthy=False))

    assert set(kept) < set(names(own))
    assert shelf.last_good is not None and shelf.last_good.step == 5


def test_host_may_not_remove_the_last_good_one(tmp_path: Path) -> None:
    """
    A host that keeps one may not remove the last good checkpoint; what it wanted gone goes as
    soon as a newer one is verified.
    """
    shelf = shelf_of(tmp_path, Alone(), keep=1)
    ck = tmp_path / "ck"
    shelf.save(ck / "a.ckpt", file_writer(1), facts(1))
    assert not shelf.may_remove(ck / "a.ckpt")
    shelf.save(ck / "b.ckpt", file_writer(2), facts(2, is_healthy=False))
    assert not shelf.may_remove(ck / "a.ckpt")
    assert names(ck) == ["a.ckpt", "a.ckpt.sla.json", "b.ckpt", "b.ckpt.sla.json"]

    shelf.save(ck / "c.ckpt", file_writer(3), facts(3))
    assert names(ck) == ["b.ckpt", "b.ckpt.sla.json", "c.ckpt", "c.ckpt.sla.json"]

    assert shelf.may_remove(ck / "b.ckpt")
    (ck / "b.ckpt").unlink()
    shelf.removed(ck / "b.ckpt")
    assert names(ck) == ["c.ckpt", "c.ckpt.sla.json"]


@pytest.mark.parametrize("way", ["link", "dots"])
def test_a_folder_with_two_names_is_one(way: str, tmp_path: Path) -> None:
    """
    However a host writes the path to a folder, through a link or through its parent, its last
    good checkpoint is protected, not counted twice, and its older ones are pruned.
    """
    (tmp_path / "ck").mkdir()
    (tmp_path / "link").symlink_to("ck")
    same = {"link": tmp_path / "link", "dots": tmp_path / "link" / ".." / "ck"}[way]
    first = shelf_of(tmp_path, Alone(), keep=1)
    save_folders(first, tmp_path, [10])
    first.save(same / "step-20", folder_writer(20), facts(20))
    shelf = shelf_of(tmp_path, Alone(), attempt=1, keep=1)

    for folder in (same, tmp_path / "ck"):
        assert not shelf.may_remove(folder / "step-20")
        assert shelf.is_last_good(folder / "step-20")
    save_folders(shelf_of(tmp_path, Alone(), attempt=2), tmp_path, [30])
    gone = shelf_of(tmp_path, Alone(), attempt=3).prune(same, keep=1)
    assert [path.name for path in gone] == ["step-10"]


def test_unhealthy_is_kept_and_never_chosen(tmp_path: Path) -> None:
    """
    PC-17: a state that is not healthy on any rank is committed, says so, and is never the
    last good one.
    """

    def work(peers: ThreadPeers) -> Any:
        shelf = shelf_of(tmp_path, peers)
        save_folders(shelf, tmp_path, [10], peers.rank)
        bad = facts(20, "sharded", is_healthy=peers.rank != 1)
        commit = shelf.save(tmp_path / "ck" / "step-20", folder_writer(20, peers.rank), bad)
        choice = shelf.choose()
        assert choice is not None
        return commit.is_healthy, choice.step, shelf.check(tmp_path / "ck" / "step-20") is None

    assert run_ranks(work, 2) == [(False, 10, False)] * 2


def test_attempts_are_counted_over_starts(tmp_path: Path) -> None:
    """
    PC-22: a checkpoint that was resumed from twice without getting past it is passed over,
    then the older one, then the run stops; getting past it starts the count anew. What people
    broke off does not count.
    """
    save_folders(shelf_of(tmp_path, Alone()), tmp_path, [10, 20])
    for attempt in (1, 2, 3):
        shelf = shelf_of(tmp_path, Alone(), attempt=attempt)
        choice = shelf.choose()
        assert choice is not None and choice.step == 20
        shelf.resumed(choice)
        shelf.interrupted(choice)
    chosen = []
    for attempt in (1, 2, 3, 4):
        shelf = shelf_of(tmp_path, Alone(), attempt=attempt)
        choice = shelf.choose()
        assert choice is not None
        shelf.resumed(choice)
        chosen.append(choice.step)
    assert chosen == [20, 20, 10, 10]
    with pytest.raises(NoGoodCheckpointError, match="resumed from it 2 times"):
        shelf_of(tmp_path, Alone(), attempt=5).choose()

    save_folders(shelf_of(tmp_path, Alone(), attempt=6), tmp_path, [30])
    (tmp_path / "ck" / "step-30").rename(tmp_path / "elsewhere")
    again = shelf_of(tmp_path, Alone(), attempt=7).choose()
    assert again is not None and again.step == 20


@pytest.mark.parametrize(
    ("loads", "to_step"), [("nothing", None), ("last_good", 10), ("step-10", 10)]
)
def test_rollback_stays_within_one_training(
    loads: str, to_step: int | None, tmp_path: Path
) -> None:
    """
    A training that begins from scratch where an earlier one of the same script has left
    checkpoints goes back to its own only; one that was loaded goes back to what it was loaded
    from and what is older, and to its own.
    """
    save_folders(shelf_of(tmp_path, Alone()), tmp_path, [10, 20])

    def work(peers: ThreadPeers) -> Any:
        shelf = shelf_of(tmp_path, peers, run_folder=tmp_path / "run-2")
        if loads == "last_good":
            shelf.choose()
        elif loads != "nothing":
            shelf.check(tmp_path / "ck" / loads)
        try:
            choice = shelf.choose(before_step=19 if loads == "last_good" else 25)
        except NoGoodCheckpointError:
            choice = None
        path = tmp_path / "ck" / "own"
        shelf.save(path, folder_writer(30, peers.rank), facts(22, "sharded"))
        own = shelf.choose(before_step=25)
        return None if choice is None else choice.step, own is not None and own.path == path

    assert run_ranks(work, 2) == [(to_step, True)] * 2


def test_rollback_sets_newer_ones_aside(tmp_path: Path) -> None:
    """
    After a rollback the newer checkpoints lie under other names, whole, and a later start
    chooses the one that was gone back to; one of before a step can be asked for.
    """

    def work(peers: ThreadPeers) -> Any:
        shelf = shelf_of(tmp_path, peers)
        save_folders(shelf, tmp_path, [10, 20, 30], peers.rank)
        choice = shelf.choose(before_step=20)
        assert choice is not None
        shelf.rolled_back(choice)
        return choice.step, shelf.last_good == choice

    assert run_ranks(work, 2) == [(10, True)] * 2
    found = sorted(path.name for path in (tmp_path / "ck").iterdir())
    assert found == [".rejected-step-20", ".rejected-step-30", "step-10"]
    again = shelf_of(tmp_path, Alone(), attempt=1).choose()
    assert again is not None and again.step == 10
