"""What Hugging Face writes: ``checkpoint-N`` of its Trainer, and folders of weights."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from slav1.checkpoint.formats import deepspeed_folder as deepspeed
from slav1.checkpoint.formats._notes import Examine, Notes
from slav1.checkpoint.formats._reading import read_small
from slav1.checkpoint.formats._weights import INDEX_SUFFIX, examine_if_there, examine_index
from slav1.checkpoint.formats.dcp_folder import is_dcp

STATE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")
_RANDOM = re.compile(r"rng_state_(\d+)\.pth")
_WEIGHTS = re.compile(r"(?:model|pytorch_model|adapter_model)\.(?:safetensors|bin)")
_SHARD = re.compile(r"(?:model|pytorch_model)-(\d+)-of-(\d+)\.(?:safetensors|bin)")
_OTHER = (
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state.pth",
    "training_args.bin",
    "optimizer.bin",
    "pytorch_model_fsdp.bin",
)


@dataclass(frozen=True, slots=True)
class WeightsFolder:
    """A folder of weights, in one file or in several with an index."""

    name: str = "weights folder"

    def claims(self, path: Path) -> bool:
        return path.is_dir() and any(_is_weights(child.name) for child in path.iterdir())

    def examine(self, path: Path, notes: Notes, examine: Examine) -> None:
        names = {child.name for child in path.iterdir()}
        indices = [path / name for name in sorted(names) if name.endswith(INDEX_SUFFIX)]
        for index in indices:
            examine_index(index, notes, examine)
        shards = sorted(name for name in names if _SHARD.fullmatch(name))
        if shards and not indices:
            kind = shards[0].rpartition(".")[2]
            index = path / f"{shards[0].split('-')[0]}.{kind}{INDEX_SUFFIX}"
            notes.damaged(index, "missing: nothing says which shard holds what")
            examine_if_there((path / name for name in shards), examine, notes)
        examine_if_there((path / n for n in names if _WEIGHTS.fullmatch(n)), examine, notes)


@dataclass(frozen=True, slots=True)
class TransformersFolder:
    """A ``checkpoint-N`` of ``transformers.Trainer``."""

    name: str = "transformers folder"

    def claims(self, path: Path) -> bool:
        if not path.is_dir():
            return False
        is_named = _NAME.fullmatch(path.name) and WeightsFolder().claims(path)
        return (path / STATE).exists() or bool(is_named and (path / "optimizer.pt").exists())

    def examine(self, path: Path, notes: Notes, examine: Examine) -> None:
        step = _step(path / STATE, notes)
        named = _NAME.fullmatch(path.name)
        if step is not None and named and step != int(named[1]):
            notes.damaged(path / STATE, f"says step {step}; the folder is named for {named[1]}")
        _examine_model(path, notes, examine)
        files = {child.name for child in path.iterdir()}
        examine_if_there((path / name for name in _OTHER), examine, notes)
        ranks = {int(match[1]) for name in files if (match := _RANDOM.fullmatch(name))}
        for rank in range(max(ranks, default=-1) + 1):
            file = path / f"rng_state_{rank}.pth"
            if rank in ranks:
                examine(file, notes)
            else:
                notes.damaged(file, "missing; a later rank's is there")
        if "scheduler.pt" in files and not _has_optimizer(path):
            notes.damaged(path / "optimizer.pt", "missing; there is a scheduler for it")
        if not _has_optimizer(path):
            notes.unsure_of_more(
                path, "no optimizer: fine with save_only_model, else it is missing"
            )


def _is_weights(name: str) -> bool:
    is_index = name.endswith((f".safetensors{INDEX_SUFFIX}", f".bin{INDEX_SUFFIX}"))
    return is_index or bool(_WEIGHTS.fullmatch(name) or _SHARD.fullmatch(name))


def _step(file: Path, notes: Notes) -> int | None:
    if not file.exists():
        notes.damaged(file, "missing: the save did not end")
        return None
    with notes.looking_at(file):
        try:
            step = json.loads(read_small(file))["global_step"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            notes.damaged(file, f"no state of a Trainer: {error!r}")
            return None
        notes.passed("structure")
        return step if isinstance(step, int) else None
    return None


def _examine_model(path: Path, notes: Notes, examine: Examine) -> None:
    has_weights = WeightsFolder().claims(path)
    if has_weights:
        WeightsFolder().examine(path, notes, examine)
    parts = [child for child in sorted(path.iterdir()) if is_dcp(child)]
    for part in parts:
        examine(part, notes)
    has_engine = deepspeed.DeepSpeedFolder().claims(path)
    if has_engine:
        deepspeed.DeepSpeedFolder().examine(path, notes, examine)
    if not (has_weights or parts or has_engine or (path / "pytorch_model_fsdp.bin").exists()):
        notes.damaged(
            path / "model.safetensors",
            "missing, and so are pytorch_model.bin, pytorch_model_fsdp_0 and files of DeepSpeed",
        )


def _has_optimizer(path: Path) -> bool:
    names = ("optimizer.pt", "optimizer.bin", "optimizer_0")
    return any((path / name).exists() for name in names) or deepspeed.DeepSpeedFolder().claims(path)
