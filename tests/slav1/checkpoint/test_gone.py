"""Checkpoints that were there once: no start takes their absence for a first start."""

from pathlib import Path
from typing import Any

import pytest

from slav1.checkpoint import Alone, NoGoodCheckpointError
from slav1.testing._files import flip_a_bit

from ._shelves import facts, file_writer, shelf_of


def save(root: Path, *steps: int, **more: Any) -> None:
    shelf = shelf_of(root, Alone(), **more)
    for step in steps:
        shelf.save(root / "ck" / f"step-{step}", file_writer(step), facts(step))


def test_second_start_does_not_begin_from_scratch_either(tmp_path: Path) -> None:
    """
    When all checkpoints are damaged, the first start refuses and sets them aside; the next
    one refuses as well, and names where they lie now.
    """
    save(tmp_path, 10, 20)
    for step in (10, 20):
        flip_a_bit(tmp_path / "ck" / f"step-{step}")

    for _ in range(2):
        with pytest.raises(NoGoodCheckpointError, match="never begun unasked") as refused:
            shelf_of(tmp_path, Alone(), attempt=1).choose()
    assert ".rejected-" in str(refused.value)


def test_checkpoints_that_vanished_are_no_first_start(tmp_path: Path) -> None:
    """
    Files that somebody deleted are missed; those that a host rotated away are not.
    """
    path = tmp_path / "ck" / "step-10"
    shelf = shelf_of(tmp_path, Alone())
    shelf.save(path, file_writer(10), facts(10))
    path.unlink()
    with pytest.raises(NoGoodCheckpointError, match="step-10"):
        shelf_of(tmp_path, Alone()).choose()

    shelf.removed(path)
    assert shelf_of(tmp_path, Alone()).choose() is None


def test_newer_one_without_its_manifest_is_passed_over_aloud(tmp_path: Path) -> None:
    """
    A newer checkpoint that lost its manifest is not used, and a notice says so.
    """
    save(tmp_path, 10, 20)
    (tmp_path / "ck" / "step-20.sla.json").unlink()
    told: list[str] = []
    choice = shelf_of(tmp_path, Alone(lambda _, message, **more: told.append(message))).choose()

    assert choice is not None and choice.step == 10
    assert [message for message in told if "step-20 is newer and is not used" in message]


def test_start_that_nobody_asked_to_go_on_keeps_to_its_own(tmp_path: Path) -> None:
    """
    What the same script left in another run folder is found by who asks for it, and not by
    a launcher that has started a training again.
    """
    save(tmp_path, 10)
    other = {"run_folder": tmp_path / "run-2", "attempt": 1}
    assert shelf_of(tmp_path, Alone(), **other).choose(of_this_run=True) is None
    asked = shelf_of(tmp_path, Alone(), **other).choose()
    save(tmp_path, 4, **other)
    own = shelf_of(tmp_path, Alone(), **other).choose(of_this_run=True)

    assert asked is not None and asked.step == 10
    assert own is not None and own.step == 4


def test_one_bad_moment_is_one_failed_save(tmp_path: Path) -> None:
    """
    A host that saves one step under three names fails once, not three times in a row.
    """
    shelf = shelf_of(tmp_path, Alone())

    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    counts = []
    for name, step in (("a", 5), ("b", 5), ("c", 5), ("a", 6)):
        with pytest.raises(Exception, match="was not saved"):
            shelf.save(tmp_path / "ck" / name, fail, facts(step))
        counts.append(shelf.num_failed_in_row)
    shelf.save(tmp_path / "ck" / "a", file_writer(7), facts(7))

    assert counts == [1, 1, 1, 2]
    assert shelf.num_failed_in_row == 0
