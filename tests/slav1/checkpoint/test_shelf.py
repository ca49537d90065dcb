"""Saving, checking, choosing and keeping checkpoints on one rank and on several."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from slav1.checkpoint import (
    Alone,
    CheckpointDamagedError,
    CheckpointError,
    NoGoodCheckpointError,
    PeersMissingError,
    SaveFailedError,
)
from slav1.checkpoint._disk import Disk
from slav1.testing import ThreadPeers, run_ranks

from ._shelves import bytes_below, facts, file_writer, folder_writer, save_folders, shelf_of


def recording() -> tuple[Alone, list[tuple[Any, ...]]]:
    records: list[tuple[Any, ...]] = []
    return Alone(lambda kind, message, **more: records.append((kind, message, more))), records


def test_ranks_save_and_choose_the_same(tmp_path: Path) -> None:
    """
    A checkpoint of several ranks is committed on all, chosen by all, loaded after all of it
    was verified, and nothing else is left in its folder.
    """

    def work(peers: ThreadPeers) -> Any:
        shelf = shelf_of(tmp_path, peers)
        assert shelf.choose() is None
        save_folders(shelf, tmp_path, [10, 20], peers.rank)
        path = tmp_path / "ck" / "last.ckpt"
        shelf.save(path, file_writer(15, peers.rank), facts(15))
        commit = shelf.save(
            path, file_writer(20, peers.rank), facts(20, position={"epoch": (1, 2)})
        )
        choice = shelf_of(tmp_path, peers, attempt=1).choose()
        assert choice is not None and choice == shelf.last_good
        assert shelf.check(path) == commit.manifest
        return choice.path, choice.step, choice.manifest.position, peers.num_gathers

    results = run_ranks(work, 3)

    assert results[0] == results[1] == results[2]
    assert results[0][:3] == (tmp_path / "ck" / "last.ckpt", 20, {"epoch": [1, 2]})
    assert sorted(path.name for path in (tmp_path / "ck").iterdir()) == [
        "last.ckpt",
        "last.ckpt.sla.json",
        "step-10",
        "step-20",
    ]


def _delete(folder: Path) -> None:
    (folder / "shard_1.bin").unlink()


def _cut(folder: Path) -> None:
    os.truncate(folder / "shard_0.bin", 4500)


def _flip(folder: Path) -> None:
    flip_a_bit(folder / "shard_1.bin")


def _other_step(folder: Path) -> None:
    shutil.copy(folder.parent / "step-20" / "shard_0.bin", folder / "shard_0.bin")


def _swap(folder: Path) -> None:
    (folder / "shard_0.bin").rename(folder / "x")
    (folder / "shard_1.bin").rename(folder / "shard_0.bin")
    (folder / "x").rename(folder / "shard_1.bin")


def _flip_manifest(folder: Path) -> None:
    text = (folder / "sla_manifest.json").read_text()
    (folder / "sla_manifest.json").write_text(text.replace('"step": 30', '"step": 31'))


def _empty_all(folder: Path) -> None:
    for path in folder.iterdir():
        os.truncate(path, 0)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES = {
    _delete: ("shard_1.bin", "missing"),
    _cut: ("shard_0.bin", "size"),
    _flip: ("shard_1.bin", "digest"),
    _other_step: ("shard_0.bin", "digest"),
    _swap: ("shard_0.bin", "digest"),
    _flip_manifest: (".", "manifest"),
    _empty_all: (".", "manifest"),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_found_and_the_next_older_is_chosen(damage: Any, tmp_path: Path) -> None:
    """
    PC-02: whatever befell the newest checkpoint, all ranks go on from the one before it, one
    message names checkpoint, member and check, and what was rejected stays on the disk.
    """
    member, check = DAMAGES[damage]

    def save_all(peers: ThreadPeers) -> None:
        save_folders(shelf_of(tmp_path, peers), tmp_path, [10, 20, 30], peers.rank)

    def resume(peers: ThreadPeers) -> Any:
        shelf = shelf_of(tmp_path, peers, attempt=1)
        with pytest.raises(CheckpointDamagedError) as caught:
            shelf.check(tmp_path / "ck" / "step-30")
        choice = shelf.choose()
        assert choice is not None
        return caught.value.member, caught.value.check, choice.step, peers.records

    run_ranks(save_all, 2)
    damage(tmp_path / "ck" / "step-30")
    before = bytes_below(tmp_path / "ck" / "step-30")
    results = run_ranks(resume, 2)

    assert [result[:3] for result in results] == [(member, check, 20)] * 2
    kinds = [(kind, more["path"]) for kind, _, more in results[0][3]]
    assert kinds == [("checkpoint_rejected", str(tmp_path / "ck" / "step-30"))]
    message = results[0][3][0][1]
    assert "step-30" in message and (member == "." or member in message)
    assert bytes_below(tmp_path / "ck" / ".rejected-step-30") == before


def test_nothing_good_is_no_fresh_start(tmp_path: Path) -> None:
    """
    If there are checkpoints and none verifies, choosing fails and names each reason.
    """
    save_folders(shelf_of(tmp_path, Alone()), tmp_path, [10, 20])
    for step in (10, 20):
        flip_a_bit(tmp_path / "ck" / f"step-{step}" / "shard_0.bin")

    with pytest.raises(NoGoodCheckpointError, match=r"(?s)step-20.*step-10") as caught:
        shelf_of(tmp_path, Alone(), attempt=1).choose()
    assert len(caught.value.rejected) == 2


def test_third_is_found_without_any_pointer(tmp_path: Path) -> None:
    """
    PC-03 (iv): with the two newest emptied and the catalogue gone, the third is chosen.
    """
    save_folders(shelf_of(tmp_path, Alone()), tmp_path, [10, 20, 30])
    for step in (20, 30):
        _empty_all(tmp_path / "ck" / f"step-{step}")
    (tmp_path / "checkpoints.jsonl").unlink()

    choice = shelf_of(tmp_path, Alone(), attempt=1).choose()

    assert choice is not None and choice.step == 10


@pytest.mark.parametrize("stage", ["write", "flush", "rename"])
def test_failed_save_changes_nothing(stage: str, tmp_path: Path) -> None:
    """
    PC-03 (i): a save that fails half-way is reported with its reason on every rank, counted,
    and leaves what was under the name as it was, and nothing beside it.
    """

    class Failing(Disk):
        is_on = False

        def fsync(self, path: Path) -> None:
            if self.is_on and stage == "flush" and path.is_file():
                raise OSError(5, "Input/output error", str(path))
            super().fsync(path)

        def rename(self, old: Path, new: Path) -> None:
            if self.is_on and stage == "rename":
                raise OSError(30, "Read-only file system", str(new))
            super().rename(old, new)

    path = tmp_path / "ck" / "last.ckpt"

    def work(peers: ThreadPeers) -> Any:
        disk = Failing()
        shelf = shelf_of(tmp_path, peers, disk=disk)
        shelf.save(path, file_writer(10, peers.rank), facts(10))
        disk.is_on = True

        def write(staging: Path) -> None:
            if peers.rank == 0:
                staging.write_bytes(b"half")
                if stage == "write":
                    raise OSError(28, "No space left on device", str(staging))

        with pytest.raises(SaveFailedError) as caught:
            shelf.save(path, write, facts(20))
        assert shelf.num_failed_in_row == 1
        disk.is_on = False
        seen = sorted(one.name for one in (tmp_path / "ck").iterdir()), path.read_bytes()
        again = shelf.save(path, file_writer(30, peers.rank), facts(30))
        assert shelf.num_failed_in_row == 0
        return str(caught.value), caught.value.ranks, seen, again.step, peers.records

    results = run_ranks(work, 2)

    words = {"write": "No space left", "flush": "Input/output", "rename": "Read-only"}
    assert results[0][:2] == results[1][:2] and words[stage] in results[0][0]
    assert results[0][1] == (0,) and results[0][3] == 30
    kinds = [kind for kind, _, _ in results[0][4]]
    assert kinds == ["checkpoint_committed", "checkpoint_rejected", "checkpoint_committed"]
    assert results[0][2] == (["last.ckpt", "last.ckpt.sla.json"], bytes([10]) * 9000)


def test_failed_flush_is_not_tried_again(tmp_path: Path) -> None:
    """
    After a flush failed, the same file is never flushed a second time.
    """
    flushed: list[Path] = []

    class Once(Disk):
        def fsync(self, path: Path) -> None:
            flushed.append(path)
            raise OSError(5, "Input/output error", str(path))

    with pytest.raises(SaveFailedError):
        shelf_of(tmp_path, Alone(), disk=Once()).save(
            tmp_path / "ck" / "a.ckpt", file_writer(1), facts(1)
        )

    assert len(flushed) == len(set(flushed)) == 1


def test_medium_that_lies_is_found_before_the_commit(tmp_path: Path) -> None:
    """
    If the medium gives back other bytes than were written, there is no commit.
    """

    class Lying(Disk):
        def fsync(self, path: Path) -> None:
            super().fsync(path)
            if path.is_file():
                flip_a_bit(path)

    # The flip comes with the flush, so it may be in the first digest too: then both agree,
    # and only the level `content` could tell. A large file makes that practically impossible.
    def write(path: Path) -> None:
        path.write_bytes(b"a" * (64 << 20))

    peers, records = recording()
    with pytest.raises(SaveFailedError, match="reads back differently"):
        shelf_of(tmp_path, peers, disk=Lying()).save(tmp_path / "ck" / "a.ckpt", write, facts(1))
    assert [kind for kind, _, _ in records] == ["checkpoint_rejected"] * 2
    assert not (tmp_path / "ck" / "a.ckpt").exists()


def test_left_overs_of_the_dead_are_cleared_and_never_read(tmp_path: Path) -> None:
    """
    PC-03 (ii), PC-04 (i): what a killed writer left is removed at the next start and named as
    a lost save; what a living writer of another run is making stays.
    """
    shelf = shelf_of(tmp_path, Alone())
    save_folders(shelf, tmp_path, [10])
    folder = tmp_path / "ck"
    alive = shelf._line.writer
    other = f".sla-new-aaaaaaaa-{alive.boot}-{os.getppid()}"
    import psutil

    parent_started = round(psutil.Process(os.getppid()).create_time() * 1000)
    kept = folder / f"{other}-{parent_started}-1-20.step-20"
    lost = folder / f".sla-new-{alive.run}-{alive.boot}-4194305-1-2-20.step-20"
    for path in (kept, lost):
        path.mkdir()
        (path / "sla_manifest.json").write_text((folder / "step-10/sla_manifest.json").read_text())
    (folder / f"{lost.name}.sla.json").write_text("{")

    peers, records = recording()
    choice = shelf_of(tmp_path, peers, attempt=1).choose()

    assert choice is not None and choice.path.name == "step-10"
    assert sorted(path.name for path in folder.iterdir()) == [kept.name, "step-10"]
    assert [(kind, more["step"]) for kind, _, more in records] == [("notice", 20)]
    assert "in flight" in records[0][1]


def test_replacement_cut_short_is_put_right(tmp_path: Path) -> None:
    """
    Where names can't be swapped and the process died between the two renames, the old folder
    is back under its name before it is checked or chosen.
    """
    shelf = shelf_of(tmp_path, Alone())
    path = tmp_path / "ck" / "last"
    shelf.save(path, folder_writer(10), facts(10, "sharded"))
    me = shelf._line.writer
    path.rename(path.with_name(f".sla-old-{me.run}-{me.boot}-4194305-1-2-20.last"))

    manifest = shelf_of(tmp_path, Alone(), attempt=1).check(path)

    assert manifest is not None and manifest.step == 10
    assert [one.name for one in path.parent.iterdir()] == ["last"]


@pytest.mark.parametrize("writer", [folder_writer, file_writer])
def test_replacement_that_fails_half_way_is_taken_back(writer: Any, tmp_path: Path) -> None:
    """
    Where names can't be swapped in one step and the second rename fails, the old checkpoint has
    its name again, in this process too.
    """

    class Fails(Disk):
        def exchange(self, one: Path, other: Path) -> bool:
            return False

        def rename(self, old: Path, new: Path) -> None:
            if new.name == "last" and old.name.startswith(".sla-new"):
                raise OSError(5, "no second rename", str(new))
            super().rename(old, new)

    path = tmp_path / "ck" / "last"
    shelf_of(tmp_path, Alone()).save(path, folder_writer(1), facts(1))
    shelf = shelf_of(tmp_path, Alone(), disk=Fails())

    with pytest.raises(SaveFailedError, match="no second rename"):
        shelf.save(path, writer(2), facts(2))

    choice = shelf.choose()
    assert choice is not None and (choice.path, choice.step) == (path, 1)
    assert not list(path.parent.glob(".sla-*"))


def test_an_old_one_that_can_not_be_removed_costs_no_save(tmp_path: Path) -> None:
    """
    Once the successor stands the save has succeeded, though a file of the old one is held open
    by somebody; a later start removes what is left.
    """

    class Holds(Disk):
        def rmdir(self, path: Path) -> None:
            raise OSError(39, "not empty", str(path))

    path = tmp_path / "ck" / "last"
    shelf = shelf_of(tmp_path, Alone(), disk=Holds())
    shelf.save(path, folder_writer(1), facts(1))

    assert shelf.save(path, folder_writer(2), facts(2)).manifest.sequence == 2
    assert shelf.check(path) is not None


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    """
    A file that a temporary-file helper made for its owner alone gets the usual permissions.
    """

    def write(path: Path) -> None:
        path.mkdir()
        os.close(os.open(path / "a", os.O_CREAT | os.O_WRONLY, 0o600))
        (path / "a").write_bytes(b"1")

    before = os.umask(0o027)
    try:
        shelf_of(tmp_path, Alone()).save(tmp_path / "ck" / "s", write, facts(1))
    finally:
        os.umask(before)

    assert (tmp_path / "ck" / "s" / "a").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "ck" / "s" / "sla_manifest.json").stat().st_mode & 0o777 == 0o640


def test_what_was_there_before_us_is_not_called_verified(tmp_path: Path) -> None:
    """
    PC-26: a checkpoint without a manifest is neither damaged nor verified nor chosen, and
    saving over it works.
    """
    path = tmp_path / "ck" / "last.ckpt"
    path.parent.mkdir()
    path.write_bytes(b"of somebody else")
    shelf = shelf_of(tmp_path, Alone())

    assert shelf.check(path) is None and shelf.choose() is None and shelf.may_remove(path)
    shelf.save(path, file_writer(1), facts(1))
    path.write_bytes(b"of somebody else")
    assert shelf.check(path) is None, "as after a crash between the two renames"


def test_damage_is_no_less_damage_after_a_replacement_cut_short(tmp_path: Path) -> None:
    """
    A checkpoint of ours that is damaged when its successor is about to replace it is still
    called damaged if the replacement never comes, and not something that was there before.
    """
    path = tmp_path / "ck" / "last.ckpt"
    shelf = shelf_of(tmp_path, Alone())
    shelf.save(path, file_writer(1), facts(1))
    flip_a_bit(path)
    damaged = path.read_bytes()

    shelf.save(path, file_writer(2), facts(2))
    path.write_bytes(damaged)

    with pytest.raises(CheckpointDamagedError, match="digest"):
        shelf.check(path)


def test_a_catalogue_that_can_not_be_read_is_told_to_all(tmp_path: Path) -> None:
    """
    The catalogue only helps: a rank that can't read it still comes to a save; and where rank 0
    can't, a choice fails on all ranks as what goes wrong with checkpoints does.
    """

    def save(peers: ThreadPeers) -> Any:
        home = tmp_path / str(peers.rank)
        if peers.rank == 1:
            (home / "checkpoints.jsonl").mkdir(parents=True)
        shelf = shelf_of(home, peers)
        path = tmp_path / "ck" / "last.ckpt"
        return shelf.save(path, file_writer(1, peers.rank), facts(1)).step

    def choose(peers: ThreadPeers) -> Any:
        return shelf_of(tmp_path / "1", peers).choose()

    saved, chosen = run_ranks(save, 2), run_ranks(choose, 2)

    assert saved == [1, 1]
    assert [type(end) for end in chosen] == [CheckpointError, CheckpointError]
    assert "Is a directory" in str(chosen[0])


def test_another_job_is_left_alone(tmp_path: Path) -> None:
    """
    Checkpoints of another job in the same folders are neither chosen nor set aside.
    """
    save_folders(shelf_of(tmp_path, Alone(), run="other"), tmp_path, [10, 20])
    flip_a_bit(tmp_path / "ck" / "step-20" / "shard_0.bin")

    assert shelf_of(tmp_path, Alone()).choose() is None
    assert (tmp_path / "ck" / "step-20").exists()


def test_only_some_ranks_enter(tmp_path: Path) -> None:
    """
    PC-08: a save that only one rank enters fails in bounded time with both lists of ranks.
    """

    def work(peers: ThreadPeers) -> Any:
        shelf = shelf_of(tmp_path, peers, limit_s=0.2)
        if peers.rank == 0:
            shelf.save(tmp_path / "ck" / "a", folder_writer(1), facts(1, "sharded"))

    failed = run_ranks(work, 2)[0]

    assert isinstance(failed, SaveFailedError)
    assert isinstance(failed.__cause__, PeersMissingError)
    assert "entered by ranks [0], missing [1]" in str(failed)
    assert not list((tmp_path / "ck").iterdir())


def test_shard_that_only_one_rank_sees(tmp_path: Path) -> None:
    """
    A sharded checkpoint is not committed while one rank's part is missing or has failed.
    """

    def work(peers: ThreadPeers) -> Any:
        def write(path: Path) -> None:
            folder_writer(1, peers.rank)(path)
            if peers.rank == 1:
                raise RuntimeError("disk of rank 1")

        shelf = shelf_of(tmp_path, peers)
        shelf.save(tmp_path / "ck" / "a", write, facts(1, "sharded"))

    results = run_ranks(work, 3)

    assert all(isinstance(one, SaveFailedError) and one.ranks == (1,) for one in results)
    assert "disk of rank 1" in str(results[2])
    assert not list((tmp_path / "ck").iterdir())


def test_every_rank_meets_equally_often(tmp_path: Path) -> None:
    """
    PC-08: no meeting stands behind a branch that only some ranks take.
    """

    def work(peers: ThreadPeers) -> Any:
        shelf = shelf_of(tmp_path, peers, verify="bytes", keep=1)
        save_folders(shelf, tmp_path, [10, 20, 30], peers.rank)
        shelf.prune(tmp_path / "ck")
        choice = shelf.choose()
        assert choice is not None
        shelf.resumed(choice)
        shelf.rolled_back(choice)
        return peers.num_gathers

    assert len(set(run_ranks(work, 3))) == 1
