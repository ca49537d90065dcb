"""Checkpoints of every form, made by the real libraries where those are quick."""

import json
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

# Bytes that are easily found again in a file: the values of one tensor.
MARK = 1.2345678
NUM_MARKS = 64
MARK_BYTES = struct.pack("<f", MARK) * NUM_MARKS


class Sample(NamedTuple):
    """One form of checkpoint."""

    make: Callable[[Path], Path]
    """Makes it inside a folder; returns it."""
    form: str
    """Its name in the examination."""
    has_crc: bool
    """Whether each file with values has checksums."""
    optional: tuple[str, ...] = ()
    """Parts whose loss can't be told from their never having been there."""


def state() -> dict[str, torch.Tensor]:
    return {"weight": torch.full((8, 8), MARK), "bias": torch.arange(4.0)}


def _torch_file(folder: Path) -> Path:
    path = folder / "model.pt"
    torch.save({"model": state(), "step": 3}, path)
    return path


def _legacy_file(folder: Path) -> Path:
    path = folder / "model.pth"
    torch.save({"model": state()}, path, _use_new_zipfile_serialization=False)
    return path


def _safetensors_file(folder: Path) -> Path:
    from safetensors.torch import save_file

    save_file(state(), folder / "model.safetensors")
    return folder / "model.safetensors"


def save_dcp(plain: dict[str, object], path: Path) -> Path:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(plain, checkpoint_id=str(path), no_dist=True)
    return path


def _dcp(folder: Path) -> Path:
    return save_dcp({"model": state(), "extra": {"lr": 0.1}}, folder / "dcp")


def _lightning_plain() -> dict[str, object]:
    return {
        "epoch": 1,
        "global_step": 3,
        "pytorch-lightning_version": "2.6.6",
        "loops": {},
        "callbacks": {"EarlyStopping": {"best_score": torch.tensor(float("inf"))}},
    }


def _lightning_file(folder: Path) -> Path:
    path = folder / "epoch=0-step=3.ckpt"
    torch.save({**_lightning_plain(), "state_dict": state()}, path)
    return path


def _lightning_folder(folder: Path) -> Path:
    path = folder / "epoch=1-step=3.ckpt"
    _dcp(folder).rename(path)
    torch.save(_lightning_plain(), path / "meta.pt")
    return path


def _accelerate(folder: Path, *, safe: bool) -> Path:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    with torch.no_grad():
        accelerator.unwrap_model(model).weight.fill_(MARK)
    path = folder / "checkpoint_0"
    accelerator.save_state(str(path), safe_serialization=safe)
    return path


def _accelerate_fsdp(folder: Path) -> Path:
    path = folder / "checkpoint_1"
    _accelerate(folder, safe=True).rename(path)
    (path / "model.safetensors").unlink()
    (path / "optimizer.bin").unlink()
    _dcp(folder).rename(path / "pytorch_model_fsdp_0")
    _dcp(folder).rename(path / "optimizer_0")
    return path


def _deepspeed_tag(folder: Path, *, stage: int) -> None:
    folder.mkdir(parents=True)
    told = {"dp_world_size": 2, "mp_world_size": 1, "ds_version": "0.19.8"}
    told |= {"ds_config": {"zero_optimization": {"stage": stage}}}
    prefixes = ["zero_pp_rank_0_", "zero_pp_rank_1_"] if stage == 3 else [""]
    for prefix in prefixes:
        plain = {"module": state(), "optimizer": None, **told}
        torch.save(plain, folder / f"{prefix}mp_rank_00_model_states.pt")
    for rank in range(2):
        plain = {"optimizer_state_dict": state(), "ds_version": "0.19.8"}
        torch.save(plain, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def _deepspeed(folder: Path, *, stage: int) -> Path:
    path = folder / f"stage{stage}.ckpt"
    _deepspeed_tag(path / "checkpoint", stage=stage)
    (path / "latest").write_text("checkpoint")
    (path / "zero_to_fp32.py").write_text("print()\n")
    return path


def _accelerate_deepspeed(folder: Path) -> Path:
    path = folder / "checkpoint_2"
    _deepspeed_tag(path / "pytorch_model", stage=2)
    (path / "latest").write_text("pytorch_model")
    for rank in range(2):
        torch.save(
            {"step": 1, "torch_manual_seed": torch.get_rng_state()},
            path / f"random_states_{rank}.pkl",
        )
    return path


def _weights(folder: Path) -> None:
    from safetensors.torch import save_file

    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    save_file({"weight": state()["weight"]}, folder / names[0])
    save_file({"bias": state()["bias"]}, folder / names[1])
    index = {"metadata": {}, "weight_map": {"weight": names[0], "bias": names[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _weights_folder(folder: Path) -> Path:
    path = folder / "weights"
    path.mkdir()
    _weights(path)
    return path


def _transformers(folder: Path) -> Path:
    path = folder / "checkpoint-500"
    path.mkdir()
    _weights(path)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"state": state()}, path / name)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 500}))
    return path


SAMPLES = {
    "torch": Sample(_torch_file, "torch.save file", has_crc=True),
    "legacy": Sample(_legacy_file, "pickle file", has_crc=False),
    "safetensors": Sample(_safetensors_file, "safetensors file", has_crc=False),
    "dcp": Sample(_dcp, "DCP folder", has_crc=True),
    "lightning": Sample(_lightning_file, "Lightning file", has_crc=True),
    "lightning_folder": Sample(_lightning_folder, "Lightning sharded folder", has_crc=True),
    "accelerate": Sample(
        lambda folder: _accelerate(folder, safe=True),
        "Accelerate folder",
        has_crc=False,
        optional=("scheduler.bin",),
    ),
    "accelerate_pickle": Sample(
        lambda folder: _accelerate(folder, safe=False),
        "Accelerate folder",
        has_crc=True,
        optional=("scheduler.bin",),
    ),
    "accelerate_fsdp": Sample(
        _accelerate_fsdp, "Accelerate folder", has_crc=True, optional=("scheduler.bin",)
    ),
    "accelerate_deepspeed": Sample(
        _accelerate_deepspeed, "Accelerate folder", has_crc=True, optional=("latest",)
    ),
    "deepspeed_2": Sample(
        lambda folder: _deepspeed(folder, stage=2),
        "DeepSpeed folder",
        has_crc=True,
        optional=("latest", "zero_to_fp32.py"),
    ),
    "deepspeed_3": Sample(
        lambda folder: _deepspeed(folder, stage=3),
        "DeepSpeed folder",
        has_crc=True,
        optional=("latest", "zero_to_fp32.py"),
    ),
    "weights": Sample(_weights_folder, "weights folder", has_crc=False),
    "transformers": Sample(
        _transformers,
        "transformers folder",
        has_crc=False,
        optional=("scheduler.pt", "rng_state.pth"),
    ),
}


def files_of(path: Path) -> list[Path]:
    """The files of a checkpoint, itself if it is one."""
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def copy_of(path: Path, folder: Path) -> Path:
    """A copy of a checkpoint that may be damaged."""
    copy = folder / path.name
    if path.is_dir():
        shutil.copytree(path, copy)
    else:
        shutil.copy(path, copy)
    return copy
