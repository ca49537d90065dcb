"""``sla verify``: whole, damaged or no checkpoint, and a status for each."""

import json

import pytest
import torch


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "checkpoints" / "model.pt"
    path.parent.mkdir()
    torch.save({"weight": torch.ones(8)}, path)
    return path


def cut(path):
    path.write_bytes(path.read_bytes()[:-30])


def test_a_whole_one_ends_with_0(sla, checkpoint):
    """
    A whole checkpoint ends with status 0, and what was checked is told.
    """
    result = sla("verify", checkpoint)

    assert result.status == 0
    assert f"{checkpoint}: whole; torch.save file" in result.out
    assert "crc32 of 1" in result.out


def test_a_damaged_one_ends_with_3(sla, checkpoint):
    """
    A damaged one ends with status 3, its file and the reason on one line.
    """
    cut(checkpoint)

    result = sla("verify", checkpoint)

    assert result.status == 3
    assert "\n  damaged: model.pt: cut or not a zip" in result.out


@pytest.mark.parametrize("name", ["no/such", "notes.txt", "empty"])
def test_what_is_none_ends_with_2(sla, tmp_path, name):
    """
    What is no checkpoint ends with status 2 and one line on stderr.
    """
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()

    result = sla("verify", tmp_path / name)

    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("sla: ") and result.err.count("\n") == 1
    assert "is not a checkpoint" in result.err


def test_all_of_a_folder_are_judged(sla, checkpoint):
    """
    Given a folder of checkpoints, each is one JSON object a line, and one damaged one decides
    the status.
    """
    broken = checkpoint.with_name("broken.pt")
    torch.save({"weight": torch.ones(8)}, broken)
    cut(broken)

    result = sla("verify", checkpoint.parent, "--json")

    found = {line["path"]: line for line in map(json.loads, result.out.splitlines())}
    assert result.status == 3
    assert [found[str(path)]["is_whole"] for path in (broken, checkpoint)] == [False, True]
    assert found[str(broken)]["damages"][0]["file"] == "broken.pt"


def test_finiteness_is_asked_for(sla, checkpoint):
    """
    NaN is damage only where it is asked for.
    """
    torch.save({"weight": torch.full((8,), float("nan"))}, checkpoint)

    plain, finite = sla("verify", checkpoint), sla("verify", checkpoint, "--finite")

    assert (plain.status, finite.status) == (0, 3)
    assert "not finite: weight (8 values)" in finite.out
