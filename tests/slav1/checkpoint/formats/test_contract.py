"""What must be true of every form of checkpoint: whole is whole, damage is named."""

import random
import shutil
from pathlib import Path

import pytest
from _checkpoint_samples import MARK_BYTES, SAMPLES, copy_of, files_of

from slav1.checkpoint.formats import FORMATS, NotACheckpointError, examine

every_form = pytest.mark.parametrize("name", SAMPLES)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    """Every sample, made once; copies of it are damaged."""
    found = {}
    for name, sample in SAMPLES.items():
        folder = tmp_path_factory.mktemp(name)
        found[name] = sample.make(folder)
    return found


def named(found, file: Path, root: Path) -> bool:
    """Whether a damage names this file."""
    name = file.name if root == file else str(file.relative_to(root))
    return name in {each.file for each in found.damages}


def test_every_form_is_held_to_this_contract():
    """
    Each form that is known has a sample above.
    """
    assert {form.name for form in FORMATS} == {sample.form for sample in SAMPLES.values()}


@every_form
def test_whole_is_whole(made, name):
    """
    A checkpoint that nobody touched has its form, no damage, and all its numbers finite.
    """
    found = examine(made[name], finite=True)

    assert (found.form, found.damages) == (SAMPLES[name].form, ())
    assert found.num_files >= len(files_of(made[name])) - len(SAMPLES[name].optional)
    assert found.checks["finite"] >= 1


@every_form
def test_a_cut_file_is_named(made, name, tmp_path):
    """
    A file that lost its last byte, its second half or everything is named, whichever it is.
    """
    for number, original in enumerate(files_of(made[name])):
        if original.name == "zero_to_fp32.py":
            continue
        size = original.stat().st_size
        for length in (size - 1, size // 2, 0):
            copy = copy_of(made[name], _empty(tmp_path / f"{number}-{length}"))
            file = _same(original, made[name], copy)
            with file.open("r+b") as opened:
                opened.truncate(length)

            assert named(examine(copy), file, copy) or file.name == "latest", (file, length)


@every_form
def test_a_missing_file_is_named(made, name, tmp_path):
    """
    A file that is gone is named, or what remains is no checkpoint; for those that may be left
    out the examination says what it can't tell.
    """
    if made[name].is_file():
        return
    for number, original in enumerate(files_of(made[name])):
        copy = copy_of(made[name], _empty(tmp_path / str(number)))
        file = _same(original, made[name], copy)
        file.unlink()

        if file.name in SAMPLES[name].optional:
            assert examine(copy).is_whole
        else:
            found = examine(copy)
            # Which of the forms of a model is missing, what remains can't tell.
            is_told = any(file.name in each.message for each in found.damages)
            assert named(found, file, copy) or is_told, file


@every_form
def test_a_flipped_bit_of_a_value_is_found_or_said_to_be_out_of_reach(made, name, tmp_path):
    """
    One flipped bit among the values of any file is named, where the form has checksums; where
    it has none the examination says that bytes can't be checked.
    """
    num_flipped = 0
    for number, original in enumerate(files_of(made[name])):
        at = original.read_bytes().find(MARK_BYTES)
        if at < 0:
            continue
        num_flipped += 1
        copy = copy_of(made[name], _empty(tmp_path / str(number)))
        file = _same(original, made[name], copy)
        flip(file, at + 77)

        found = examine(copy)

        assert named(found, file, copy) or any(
            each.file == (file.name if copy == file else str(file.relative_to(copy)))
            and "no checksums" in each.message
            for each in found.unchecked
        ), file
        assert not SAMPLES[name].has_crc or not found.is_whole
    assert num_flipped


@every_form
def test_nothing_that_lies_in_a_file_breaks_it(made, name, tmp_path):
    """
    Whatever byte is changed to whatever value, the examination ends with an answer.
    """
    rng = random.Random(name)
    copy = copy_of(made[name], tmp_path)
    for file in files_of(copy):
        whole = file.read_bytes()
        for _ in range(12):
            data = bytearray(whole)
            for _ in range(rng.choice([1, 1, 8])):
                data[rng.randrange(len(data))] = rng.randrange(256)
            file.write_bytes(data)
            try:
                examine(copy)
            except NotACheckpointError:
                assert copy.is_file()
        file.write_bytes(whole)
    assert examine(copy).is_whole


@every_form
def test_a_number_that_is_not_finite_is_named(made, name, tmp_path):
    """
    One NaN among the values of a file without checksums is found when it is asked for, and
    its tensor named.
    """
    num_changed = 0
    for number, original in enumerate(files_of(made[name])):
        at = original.read_bytes().find(MARK_BYTES)
        if at < 0 or original.read_bytes().count(b"PK\x03\x04"):
            continue
        num_changed += 1
        copy = copy_of(made[name], _empty(tmp_path / str(number)))
        file = _same(original, made[name], copy)
        with file.open("r+b") as opened:
            opened.seek(at + 40)
            opened.write(b"\x00\x00\xc0\x7f")

        plain, finite = examine(copy), examine(copy, finite=True)

        assert plain.is_whole
        assert named(finite, file, copy)
        assert any(
            "weight" in each.message and "1 values" in each.message for each in finite.damages
        )
    assert num_changed or SAMPLES[name].has_crc


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    file.write_bytes(data)


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _same(file: Path, root: Path, copy: Path) -> Path:
    return copy if root == file else copy / file.relative_to(root)
