"""Checkpoints of an ``SLAAccelerator``: with the contract and without, in both directions."""

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

from sla_accelerate import LoadFailedError, SLAAccelerator, _runs
from sla_accelerate._saved import side_file as _side_file
from slav1.checkpoint import CheckpointDamagedError, NoGoodCheckpointError, SaveFailedError
from slav1.ledger import read_ledger
from slav1.recorder.ring import read_ring_file

from ._counting import UNWATCHED, WATCHED, prepared, start_afresh, trained, with_contract


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate shares its state among all objects of a process; so do we."""
    yield
    start_afresh()


@pytest.mark.smoke
@pytest.mark.parametrize("resumed_with", [True, False])
@pytest.mark.parametrize("saved_with", [True, False])
def test_the_contract_can_come_and_go_between_save_and_resume(tmp_path, saved_with, resumed_with):
    """
    All four combinations of saved and resumed with and without the contract load, and
    training goes on from the saved weights; the host sees no object of ours in between.
    """
    first = with_contract(tmp_path) if saved_with else Accelerator(cpu=True)
    trained(first, num_steps=3)
    first.save_state(tmp_path / "saved")
    start_afresh()

    second = with_contract(tmp_path) if resumed_with else Accelerator(cpu=True)
    model = trained(second, num_steps=2, load=tmp_path / "saved")

    assert model.weight.item() == 5.0
    assert not list((tmp_path / "saved").glob("custom_checkpoint*"))


def test_steps_are_counted_on(tmp_path):
    """
    A resumed training goes on with the number of the next step; one that is rolled back
    in the same process does not count any step twice.
    """
    first = with_contract(tmp_path)
    trained(first, num_steps=3)
    first.save_state(tmp_path / "saved")
    start_afresh()

    second = with_contract(tmp_path)
    model, step = prepared(second)
    second.load_state(tmp_path / "saved")
    for _ in range(2):
        step()
    second.load_state(tmp_path / "saved")
    step()
    assert model.weight.item() == 4.0
    folder = second.sla_run_folder
    second.end_training()

    assert [s.step for s in read_ring_file(folder / "ring-0.bin")] == [3, 4, 5]


def test_an_old_checkpoint_starts_with_empty_windows_and_says_so(tmp_path, caplog):
    """
    A checkpoint made without the contract loads with one line that says what is missing.
    """
    plain = Accelerator(cpu=True)
    trained(plain, num_steps=1)
    plain.save_state(tmp_path / "saved")
    start_afresh()

    with caplog.at_level(logging.WARNING, logger="sla_accelerate"):
        trained(with_contract(tmp_path), num_steps=1, load=tmp_path / "saved")

    assert [r.message for r in caplog.records if "empty windows" in r.message]
    assert [r.message for r in caplog.records if "not verified" in r.message]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"version": 99, "step": 7, "detectors": null}', "version 99"),
        ("{", "can't be read"),
        ("[]", "can't be read"),
    ],
)
def test_a_state_of_a_later_version_or_a_damaged_one_is_left_alone(
    tmp_path, caplog, content, reason
):
    """
    What can't be understood is ignored with a warning, and the checkpoint loads.
    """
    first = with_contract(tmp_path)
    trained(first, num_steps=3)
    first.save_state(tmp_path / "saved")
    start_afresh()
    (tmp_path / "saved" / _side_file.NAME).write_text(content)
    # With the manifest it would be a damaged checkpoint.
    (tmp_path / "saved" / "sla_manifest.json").unlink()

    with caplog.at_level(logging.WARNING, logger="sla_accelerate"):
        model = trained(with_contract(tmp_path), num_steps=1, load=tmp_path / "saved")

    assert model.weight.item() == 4.0
    assert [r.message for r in caplog.records if reason in r.message]
    assert _runs.current().step == 0


def test_detectors_go_on_from_their_memories(tmp_path):
    """
    The memories that lie beside a checkpoint are those the detectors have after loading it.
    """
    first = with_contract(tmp_path, WATCHED)
    trained(first, num_steps=80)
    first.save_state(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / _side_file.NAME).read_text())
    start_afresh()

    second = with_contract(tmp_path, WATCHED)
    trained(second, num_steps=0, load=tmp_path / "saved")
    again = _runs.current().session.ask_state()
    second.end_training()

    assert saved["step"] == 79
    assert saved["detectors"]
    assert json.loads(json.dumps(again)) == saved["detectors"]


def numbered(folder: Path, total_limit: int | None = None, **settings: Any) -> SLAAccelerator:
    """An accelerator with automatic naming."""
    naming = ProjectConfiguration(
        project_dir=str(folder), automatic_checkpoint_naming=True, total_limit=total_limit
    )
    return with_contract(folder, project_config=naming, **settings)


def saved_steps(folder: Path) -> dict[int, int]:
    """The step in each numbered folder, by number."""
    return {
        int(path.name.removeprefix("checkpoint_")): json.loads(
            (path / _side_file.NAME).read_text()
        )["step"]
        for path in (folder / "checkpoints").iterdir()
    }


def flip_a_bit(path: Path) -> None:
    """Damages a file without changing its length."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def save_each_step(accelerator: SLAAccelerator, num_steps: int) -> torch.nn.Linear:
    """Trains and saves after every step."""
    model, step = prepared(accelerator)
    for _ in range(num_steps):
        step()
        accelerator.save_state()
    return model


def rejections(folder: Path) -> list[str]:
    """What the ledgers of all runs say about checkpoints that are not used."""
    return lines(folder, "checkpoint_rejected")


def lines(folder: Path, kind: str) -> list[str]:
    """What the ledgers of all runs say in lines of one kind."""
    ledgers = (folder / "runs").glob("*/ledger.jsonl")
    found = [entry for ledger in ledgers for entry in read_ledger(ledger)]
    return [entry.message or "" for entry in found if entry.kind == kind]


@pytest.mark.smoke
@pytest.mark.parametrize("safe", [True, False])
def test_the_hosts_own_numbering_works(tmp_path, safe):
    """
    With automatic naming the state lies in the folder that the host would choose, as
    safetensors or pickle, and is read from the newest one; nothing else lies among them,
    so that the host alone finds the same.
    """
    first = numbered(tmp_path)
    model, step = prepared(first)
    for _ in range(2):
        step()
        first.save_state(safe_serialization=safe)
    step()

    loaded = first.load_state()

    assert saved_steps(tmp_path) == {0: 0, 1: 1}
    assert (loaded / "model.safetensors").exists() is safe
    assert model.weight.item() == 2.0
    start_afresh()
    naming = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True)
    model, _ = prepared(alone := Accelerator(cpu=True, project_config=naming))
    alone.load_state()
    assert model.weight.item() == 2.0


def test_rotation_keeps_the_only_good_checkpoint(tmp_path):
    """
    PC-01: limit 2, three saves, the newest is damaged, a new process saves once. The good
    one is still there, since the damaged one does not count, and the numbers go on; once
    there are two good ones that are newer, both go.
    """
    save_each_step(numbered(tmp_path, total_limit=2), 3)
    assert saved_steps(tmp_path) == {1: 1, 2: 2}
    flip_a_bit(tmp_path / "checkpoints" / "checkpoint_2" / "optimizer.bin")
    start_afresh()

    second = numbered(tmp_path, total_limit=2)
    save_each_step(second, 1)
    kept = saved_steps(tmp_path)
    save_each_step(second, 1)

    assert kept == {1: 1, 2: 2, 3: 0}
    assert sorted(saved_steps(tmp_path)) == [3, 4]


@pytest.mark.parametrize(("total_limit", "kept"), [(None, 5), (0, 2), (1, 2), (3, 3)])
def test_a_limit_never_leaves_less_than_two_good_ones(tmp_path, total_limit, kept):
    """
    No limit keeps all; 0 means to the host "just the new one", not "none"; and damage to
    the newest must leave one to go on from, so the two newest good ones always stay.
    """
    save_each_step(numbered(tmp_path, total_limit=total_limit), 5)

    assert sorted(saved_steps(tmp_path)) == list(range(5))[-kept:]


@pytest.mark.parametrize("how", ["missing", "size", "digest", "other step"])
@pytest.mark.parametrize("ask", [None, "last_good"])
def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path, how, ask):
    """
    PC-02: a member is missing, cut, changed, or that of another step. The checkpoint before
    is loaded, one message names what was wrong, another how much is lost, and the damaged
    folder is kept.
    """
    save_each_step(numbered(tmp_path), 3)
    newest = tmp_path / "checkpoints" / "checkpoint_2"
    member = newest / "optimizer.bin"
    if how == "missing":
        member.unlink()
    elif how == "size":
        member.write_bytes(member.read_bytes()[: member.stat().st_size // 2])
    elif how == "digest":
        flip_a_bit(member)
    else:
        member = newest / "model.safetensors"
        shutil.copy(newest.with_name("checkpoint_1") / member.name, member)
    start_afresh()

    second = numbered(tmp_path)
    model, step = prepared(second)
    loaded = second.load_state(ask)
    step()
    second.save_state()

    assert loaded.name == "checkpoint_1"
    assert model.weight.item() == 3.0
    assert [line for line in lines(tmp_path, "notice") if "the 1 steps up to" in line]
    (message,) = rejections(tmp_path)
    check = "digest" if how == "other step" else how
    assert "checkpoint_2" in message and member.name in message and f"(check: {check})" in message
    aside = list((tmp_path / ".sla-checkpoints").iterdir())
    assert [path.name for path in aside] == [".rejected-checkpoint_2"]
    assert saved_steps(tmp_path) == {0: 0, 1: 1, 3: 2}


def test_nothing_of_a_checkpoint_that_can_not_be_loaded_is_loaded(tmp_path):
    """
    A damaged one that is named, one with another number of registered objects, and one
    whose generators the host skips in silence: each is an error that says what is wrong,
    and but for the last, model and optimizer stay as they were.
    """
    first = with_contract(tmp_path)
    trained(first, num_steps=3)
    for name in ("damaged", "objects", "noise"):
        first.save_state(tmp_path / name)
    start_afresh()
    flip_a_bit(tmp_path / "damaged" / "optimizer.bin")
    noise = tmp_path / "noise" / "random_states_0.pkl"
    noise.write_bytes(noise.read_bytes()[:100])
    (tmp_path / "noise" / "sla_manifest.json").unlink()

    second = with_contract(tmp_path)
    model, step = prepared(second)
    step()
    with pytest.raises(CheckpointDamagedError, match=r"optimizer\.bin"):
        second.load_state(tmp_path / "damaged")
    with pytest.raises(LoadFailedError, match=r"random_states_0\.pkl") as unread:
        second.load_state(tmp_path / "noise")
    model.weight.data.fill_(1.0)
    second.register_for_checkpointing(torch.nn.Linear(1, 1))
    with pytest.raises(LoadFailedError, match="1 are registered") as uncounted:
        second.load_state(tmp_path / "objects")

    assert (unread.value.is_touched, uncounted.value.is_touched) == (True, False)
    assert model.weight.item() == 1.0


def test_last_good_needs_one_that_verifies_or_none_at_all(tmp_path):
    """
    The first start of a script with load_state("last_good") begins from scratch; if there
    are checkpoints and none verifies, it is an error instead.
    """
    first = numbered(tmp_path)
    assert first.load_state("last_good") is None
    with pytest.raises(FileNotFoundError, match="last_good"):
        first.load_state()
    save_each_step(first, 2)
    start_afresh()
    for path in (tmp_path / "checkpoints").iterdir():
        flip_a_bit(path / "model.safetensors")

    with pytest.raises(NoGoodCheckpointError, match="checkpoint_0"):
        trained(numbered(tmp_path), num_steps=0, load="last_good")


def test_a_checkpoint_that_leads_nowhere_is_passed_over(tmp_path):
    """
    A checkpoint that the run was resumed from twice without getting to another one is not
    tried a third time.
    """
    save_each_step(numbered(tmp_path), 2)
    chosen = []
    for _ in range(3):
        start_afresh()
        again = numbered(tmp_path)
        prepared(again)
        chosen.append(again.load_state("last_good").name)

    assert chosen == ["checkpoint_1", "checkpoint_1", "checkpoint_0"]


def test_a_failed_save_leaves_what_was_there_and_training_goes_on(tmp_path):
    """
    A full disk in the middle of a save over the same name: the old content stays, the run
    goes on, and only the third failure in a row ends it, with the reason.
    """
    first = with_contract(tmp_path)
    model, step = prepared(first)
    step()
    first.save_state(tmp_path / "last")

    def full(models: Any, weights: Any, folder: str) -> None:
        (Path(folder) / "half").write_bytes(b"x" * 100)
        raise OSError(28, "No space left on device")

    handle = first.register_save_state_pre_hook(full)
    outcomes = []
    for _ in range(2):
        step()
        outcomes.append(first.save_state(tmp_path / "last"))
    step()
    with pytest.raises(SaveFailedError, match="No space left"):
        first.save_state(tmp_path / "last")
    handle.remove()

    assert outcomes == [None, None]
    assert first.load_state(tmp_path / "last") == tmp_path / "last"
    assert model.weight.item() == 1.0
    assert [path.name for path in tmp_path.iterdir() if ".sla" in path.name] == []
    assert len(rejections(tmp_path)) == 3


def test_a_save_after_the_end_is_written_and_never_the_last_good_one(tmp_path, caplog):
    """
    Whoever saves after end_training gets the files, under the next number, and is told that
    nothing of it is proved.
    """
    first = numbered(tmp_path)
    save_each_step(first, 2)
    first.end_training()

    assert first.save_state() == tmp_path / "checkpoints" / "checkpoint_2"
    assert "without being proved" in caplog.text
    start_afresh()
    second = numbered(tmp_path)
    prepared(second)
    assert second.load_state("last_good").name == "checkpoint_1"


def test_a_state_that_is_not_finite_is_never_the_last_good_one(tmp_path):
    """
    PC-17: weights that became NaN are saved if the loop says so, and never chosen.
    """
    first = numbered(tmp_path)
    model = save_each_step(first, 2)
    model.weight.data.fill_(float("nan"))
    first.save_state()

    assert first.load_state("last_good").name == "checkpoint_1"
    assert sorted(saved_steps(tmp_path)) == [0, 1, 2]


def test_contents_are_compared_with_what_was_in_memory(tmp_path):
    """
    At level ``content`` every tensor in the files is the one that was in memory, or the
    save does not count. What has no effect here, as ``background``, is said.
    """
    settings = {"verify": "content", "background": True}
    first = with_contract(tmp_path, UNWATCHED.override(checkpoint=settings))
    _, step = prepared(first)
    step()
    assert first.save_state(tmp_path / "good") == tmp_path / "good"
    step()

    def change(models: Any, weights: list[dict[str, torch.Tensor]], folder: str) -> None:
        weights[0]["weight"] = weights[0]["weight"] + 1

    first.register_save_state_pre_hook(change)
    assert first.save_state(tmp_path / "bad") is None
    assert not (tmp_path / "bad").exists()
    assert "weight has other contents" in rejections(tmp_path)[0]
    assert [line for line in lines(tmp_path, "notice") if "checkpoint.background" in line]


def test_the_name_of_a_folder_is_taken_as_the_host_takes_it(tmp_path, monkeypatch):
    """
    A name that begins with ``~`` lies in the home folder, for saving and for loading; the folder
    that the script works in is not replaced, whatever it is called; a link to a folder is
    written through.
    """
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(work)
    (work / "train.py").write_text("mine")
    accelerator = with_contract(tmp_path)
    trained(accelerator, num_steps=3)

    for name in (".", "", "..", str(work)):
        with pytest.raises(ValueError, match="which the script works in"):
            accelerator.save_state(name)
    assert accelerator.save_state("~/saved") == tmp_path / "home" / "saved"
    assert accelerator.load_state("~/saved") == tmp_path / "home" / "saved"
    assert [one.name for one in work.iterdir()] == ["train.py"]
    (tmp_path / "far").mkdir()
    (work / "near").symlink_to(tmp_path / "far")
    assert accelerator.save_state("near") == tmp_path / "far"
    assert accelerator.load_state("near") == Path("near")
    assert (work / "near").is_symlink()
