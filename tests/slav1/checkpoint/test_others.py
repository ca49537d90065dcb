"""What others have put where a checkpoint goes: it stays."""

from dataclasses import replace
from pathlib import Path

import pytest

from slav1.checkpoint import Alone, SaveFailedError
from slav1.checkpoint._disk import Disk

from ._shelves import facts, file_writer, folder_writer, shelf_of


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_save_keeps_what_others_have_put_into_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    """
    A folder that is replaced loses the old checkpoint alone: logs, notes and other folders that
    were in it before the first save, or came after it, are there as they were.
    """
    if not can_exchange:
        monkeypatch.setattr(Disk, "exchange", lambda *_: False)
    shelf, out = shelf_of(tmp_path, Alone()), tmp_path / "ck"
    (out / "logs").mkdir(parents=True)
    (out / "logs" / "day").write_text("mine")

    shelf.save(out, folder_writer(10, 0), facts(10))
    (out / "note").write_text("mine too")
    commit = shelf.save(out, folder_writer(20, 0), facts(20))

    assert (out / "logs" / "day").read_text() == "mine"
    assert (out / "note").read_text() == "mine too"
    assert shelf.check(out) == commit.manifest
    assert {one.name for one in out.iterdir()} == {
        *(Path(name).parts[0] for name in commit.manifest.members),
        *("logs", "note", "sla_manifest.json"),
    }
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".sla")] == []


def test_a_file_does_not_take_the_place_of_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    """
    A single file saved under the name of somebody's folder is refused, and the folder stays;
    a checkpoint that is a folder is replaced.
    """
    shelf, out = shelf_of(tmp_path, Alone()), tmp_path / "ck"
    out.mkdir()
    (out / "mine").write_text("mine")

    with pytest.raises(SaveFailedError, match="is a folder and no checkpoint"):
        shelf.save(out, file_writer(10, 0), facts(10))
    assert [one.name for one in tmp_path.iterdir() if "ck" in one.name] == ["ck"]
    assert (out / "mine").read_text() == "mine"

    shelf.save(tmp_path / "last", folder_writer(10, 0), facts(10))
    shelf.save(tmp_path / "last", file_writer(20, 0), facts(20))
    assert (tmp_path / "last").is_file()


class KilledError(BaseException):
    """The process is gone."""


class DiesCarrying(Disk):
    """Killed when the new checkpoint is in place and the first foreign file is to follow."""

    def rename(self, old: Path, new: Path) -> None:
        if old.name == "note":
            raise KilledError
        super().rename(old, new)


@pytest.mark.parametrize("was_checkpoint", [True, False])
@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_kill_right_after_the_swap_loses_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, can_exchange: bool, was_checkpoint: bool
) -> None:
    """
    Where the writer died between the commit and the last step of a save, the next start brings
    to the new checkpoint what others had put into the folder.
    """
    if not can_exchange:
        monkeypatch.setattr(Disk, "exchange", lambda *_: False)
    shelf, out = shelf_of(tmp_path, Alone(), disk=DiesCarrying()), tmp_path / "ck"
    # What this shelf leaves has to look as if its process had ended.
    shelf._line.writer = replace(shelf._line.writer, pid=2**22 + 1)
    if was_checkpoint:
        shelf.save(out, folder_writer(10, 0), facts(10))
    out.mkdir(exist_ok=True)
    (out / "note").write_text("mine")
    with pytest.raises(KilledError):
        shelf.save(out, folder_writer(20, 0), facts(20))
    assert not (out / "note").exists()

    later = shelf_of(tmp_path, Alone(), attempt=1)
    later.save(tmp_path / "other", folder_writer(30, 0), facts(30))

    manifest = later.check(out)
    assert manifest is not None and manifest.step == 20
    assert (out / "note").read_text() == "mine"
    assert sorted(one.name for one in out.iterdir()) == ["note", "shard_0.bin", "sla_manifest.json"]
    assert [one.name for one in tmp_path.iterdir() if ".sla-" in one.name] == []
