"""What can't be said of every form: hostile files, NaN in zips, ours, names, mixtures."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from _checkpoint_samples import SAMPLES, save_dcp, state

from slav1.checkpoint._names import sidecar_of
from slav1.checkpoint.digests import digest_file
from slav1.checkpoint.formats import NotACheckpointError, checkpoints_in, examine
from slav1.checkpoint.generations import Generations
from slav1.checkpoint.manifest import Manifest

NAN = {**state(), "weight": torch.full((8, 8), float("nan"))}


class Hostile:
    """What runs a command in whoever unpickles it."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_nothing_in_a_pickle_is_run(tmp_path, protocol):
    """
    A pickle that starts a command does not start it, alone, inside a zip or as .metadata.
    """
    proof = tmp_path / "proof"
    hostile = {"state_dict": state(), "x": Hostile(f"touch {proof}")}
    torch.save(hostile, tmp_path / "zip.pt", pickle_protocol=max(protocol, 2))
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"x": Hostile(f"touch {proof}")}, protocol))
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Hostile(f"touch {proof}"), protocol))

    found = [examine(tmp_path / name, finite=True) for name in ("zip.pt", "plain.pkl", "dcp")]

    assert [each.is_whole for each in found] == [True, True, False]
    assert not proof.exists()


def test_nan_in_a_zip_is_named(tmp_path):
    """
    A tensor of NaN in a file of torch.save and in a DCP folder is named; what is infinite by
    design, as the best score of a callback before its first, is not.
    """
    file, folder = tmp_path / "a.ckpt", tmp_path / "dcp"
    best = {"callbacks": {"EarlyStopping": {"best_score": torch.tensor(float("inf"))}}}
    torch.save({"state_dict": NAN, **best}, file)
    save_dcp({"model": NAN}, folder)

    found = [examine(path, finite=True).damages for path in (file, folder)]

    assert [[each.message for each in damages] for damages in found] == [
        ["not finite: state_dict.weight (64 values)"],
        ["model.weight: not finite: the tensor (64 values)"],
    ]
    assert examine(file).is_whole


def test_every_number_type_is_looked_at(tmp_path):
    """
    Halves, brain floats, doubles, 8-bit floats and complex numbers are searched, whole numbers
    are not, and a view is searched where it lies.
    """
    kinds = [torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2, torch.complex64]
    bad = {str(kind): torch.tensor([1.0, float("nan")]).to(kind) for kind in kinds}
    both = torch.tensor([float("nan"), 1.0, 2.0])
    plain = {**bad, "view": both[1:].view(2), "count": torch.tensor([7])}
    torch.save(plain, tmp_path / "a.pt")

    found = examine(tmp_path / "a.pt", finite=True)

    named = {each.message.removeprefix("not finite: ") for each in found.damages}
    assert named == {f"{kind} (1 values)" for kind in kinds}


def test_a_file_without_checksums_says_so(tmp_path):
    """
    What was written while torch's checksums were off is not called damaged for it.
    """
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state(), tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)

    found = examine(tmp_path / "a.pt")

    assert found.is_whole and "crc32" not in found.checks
    assert "written without checksums" in found.unchecked[0].message


def test_our_digests_find_what_the_format_can_not(tmp_path):
    """
    With a manifest of ours a flipped bit is found in a file that has no checksums of its own,
    and what the digest proved is not said to be out of reach.
    """
    path = SAMPLES["legacy"].make(tmp_path)
    manifest = Manifest(
        run="r",
        host="h",
        kind="replicated",
        step=3,
        sequence=1,
        attempt=0,
        world_size=1,
        is_healthy=True,
        verify="medium",
        digest="xxh3",
        members={".": digest_file(path)},
    )
    sidecar_of(path).write_text(Generations(new=manifest).to_json())
    whole = examine(path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    flipped = examine(path)
    path.unlink()

    assert (whole.damages, whole.unchecked, whole.checks["digest"]) == ((), (), 1)
    assert [each.message.split(":")[0] for each in flipped.damages] == ["digest"]
    assert "missing" in examine(path).damages[0].message


def test_ranks_that_another_file_tells_of_are_missed(tmp_path):
    """
    The last rank's random state is missed, since its shard of the model is there.
    """
    path = SAMPLES["accelerate_deepspeed"].make(tmp_path)
    (path / "random_states_1.pkl").unlink()

    assert [each.file for each in examine(path).damages] == ["random_states_1.pkl"]


def test_all_files_of_a_kind_are_missed(tmp_path):
    """
    If every optimizer file of ZeRO is gone, the model file still tells that they belong to it.
    """
    path = SAMPLES["deepspeed_3"].make(tmp_path)
    for file in path.rglob("*optim_states.pt"):
        file.unlink()

    assert len([each for each in examine(path).damages if "optim_states" in each.file]) == 2


def test_a_shard_that_metadata_places_nowhere_is_missed(tmp_path):
    """
    A tensor whose description has a part that lies in no file is named.
    """
    path = SAMPLES["dcp"].make(tmp_path)
    with (path / ".metadata").open("rb") as file:
        metadata = pickle.load(file)
    lost = next(index for index in metadata.storage_data if index.fqn == "model.weight")
    del metadata.storage_data[lost]
    (path / ".metadata").write_bytes(pickle.dumps(metadata))

    damages = [each.message for each in examine(path).damages]
    assert "places a part of tensor model.weight in no file" in damages


def test_metadata_names_no_file_outside(tmp_path):
    """
    A .metadata that leads out of its folder is damage; nothing outside is opened.
    """
    path = SAMPLES["dcp"].make(tmp_path)
    with (path / ".metadata").open("rb") as file:
        metadata = pickle.load(file)
    for info in metadata.storage_data.values():
        info.relative_path = "../../etc/passwd"
    (path / ".metadata").write_bytes(pickle.dumps(metadata))

    assert "outside" in examine(path).damages[0].message


@pytest.mark.parametrize("name", ["notes.txt", "photo.zip", "data.npz"])
def test_other_files_are_no_checkpoints(tmp_path, name):
    """
    A text, and a zip that torch did not write, are strangers and not damaged checkpoints.
    """
    path = tmp_path / name
    if name == "notes.txt":
        path.write_text("hello")
    else:
        (tmp_path / "inner").mkdir()
        (tmp_path / "inner" / "a.npy").write_text("a")
        made = shutil.make_archive(str(tmp_path / "made"), "zip", tmp_path / "inner")
        Path(made).replace(path)

    with pytest.raises(NotACheckpointError, match=name):
        examine(path)


def test_an_empty_folder_with_a_checkpoints_name_is_damage(tmp_path):
    """
    What a kill at the wrong moment leaves, a folder and nothing in it, is no stranger.
    """
    for name in ("checkpoint_3", "epoch=0-step=4.ckpt"):
        (tmp_path / name).mkdir()
        assert not examine(tmp_path / name).is_whole
    (tmp_path / "other").mkdir()
    with pytest.raises(NotACheckpointError):
        examine(tmp_path / "other")


def test_a_folder_of_checkpoints_is_none_itself(tmp_path):
    """
    The checkpoints in a folder are found, what is still being made or set aside is not.
    """
    SAMPLES["lightning"].make(tmp_path)
    (tmp_path / ".rejected-a.ckpt").write_bytes(b"")
    (tmp_path / "log.txt").write_text("x")

    assert [path.name for path in checkpoints_in(tmp_path)] == ["epoch=0-step=3.ckpt"]
    with pytest.raises(NotACheckpointError):
        examine(tmp_path)


def test_torch_is_loaded_only_for_numbers(tmp_path):
    """
    Structure, completeness and checksums are looked at without importing torch or numpy.
    """
    paths = [SAMPLES[name].make(tmp_path) for name in ("torch", "legacy", "dcp")]
    code = (
        "import sys; from pathlib import Path; from slav1.checkpoint.formats import examine\n"
        "assert all(examine(Path(p)).is_whole for p in sys.argv[1:])\n"
        "print([n for n in ('torch', 'numpy', 'lightning', 'accelerate') if n in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_state_of_a_trainer_fits_its_folder(tmp_path):
    """
    A trainer_state.json of another step than the folder is named for is damage.
    """
    path = SAMPLES["transformers"].make(tmp_path)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 400}))

    assert "says step 400" in examine(path).damages[0].message


@pytest.mark.parametrize("name", ["legacy", "safetensors", "dcp"])
def test_a_file_that_grew_is_named(tmp_path, name):
    """
    Bytes behind the end of a file whose length is known are damage.
    """
    path = SAMPLES[name].make(tmp_path)
    file = path / "__0_0.distcp" if path.is_dir() else path
    with file.open("ab") as opened:
        opened.write(b"x")

    assert [each.file for each in examine(path).damages] == [file.name]


@pytest.mark.parametrize("is_short", [False, True])
def test_a_storage_that_the_pickle_needs_is_missed(tmp_path, is_short):
    """
    A zip that is whole as a zip, but lacks a storage or has too little of it, is damaged.
    """
    whole, path = SAMPLES["torch"].make(tmp_path), tmp_path / "less.pt"
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if not info.filename.endswith("data/0"):
                new.writestr(info.filename, data)
            elif is_short:
                new.writestr(info.filename, data[:-4])

    (damage,) = examine(path).damages
    assert damage.message.startswith("member data/0 ")


def test_tensors_that_share_bytes_are_damage(tmp_path):
    """
    A header of safetensors that places two tensors at the same bytes fits no tensor.
    """
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))

    assert "tensor b is not where" in examine(path).damages[0].message


@pytest.mark.parametrize("name", ["odd.safetensors", "zip.pt"])
def test_long_files_are_read_in_pieces(tmp_path, name):
    """
    A tensor of several pieces that starts at an odd place is searched to its last value, and a
    bit flipped in its last piece is found where there are checksums.
    """
    from safetensors.torch import save_file

    path, long = tmp_path / name, torch.ones((9 << 18) + 3)
    long[[0, 1 << 20, -1]] = float("nan")
    if name == "zip.pt":
        torch.save({"long": long}, path)
    else:
        save_file({"a": torch.ones(1, dtype=torch.uint8), "long": long}, path)

    (damage,) = examine(path, finite=True).damages
    assert damage.message == "not finite: long (3 values)"
    with path.open("r+b") as file:
        file.seek(9 << 20)
        file.write(b"\x81")
    assert examine(path).is_whole == (name != "zip.pt")
