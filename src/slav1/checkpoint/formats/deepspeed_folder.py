"""What DeepSpeed's engine saves: ``latest``, and one folder a tag with files of all ranks."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from slav1.checkpoint.formats._inert import Inert
from slav1.checkpoint.formats._notes import Examine, Notes
from slav1.checkpoint.formats._reading import read_small
from slav1.checkpoint.formats.torch_file import read_plain

LATEST = "latest"
_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER = re.compile(r"((?:bf16_|fp16_)?)zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_OTHER = re.compile(r"(?:layer_|expert_|expp_rank_).*\.pt")


class _World(NamedTuple):
    """How many ranks wrote a checkpoint, and in which stage of ZeRO."""

    data_ranks: int
    model_ranks: int
    stage: int
    is_told: bool
    """Whether a file says so, or it was only counted."""


MAX_RANKS = 1 << 20
"""Ranks beyond which a file's word for their number is not believed."""


def is_tag_folder(folder: Path) -> bool:
    """Whether files of an engine lie in a folder."""
    if not folder.is_dir():
        return False
    names = (file.name for file in folder.iterdir())
    return any(_MODEL.fullmatch(name) or _OPTIMIZER.fullmatch(name) for name in names)


def tag_folders(folder: Path) -> list[Path]:
    """Folders of tags inside a folder."""
    return sorted(child for child in folder.iterdir() if is_tag_folder(child))


def data_ranks_in(folder: Path) -> set[int]:
    """Data-parallel ranks whose files lie in the folder of a tag."""
    names = [file.name for file in folder.iterdir()]
    matches = [match for name in names if (match := _OPTIMIZER.fullmatch(name))]
    return {int(match[2]) for match in matches}


@dataclass(frozen=True, slots=True)
class DeepSpeedFolder:
    """A folder of a DeepSpeed engine, or the folder of one of its tags."""

    name: str = "DeepSpeed folder"

    def claims(self, path: Path) -> bool:
        if not path.is_dir():
            return False
        return (path / LATEST).is_file() or is_tag_folder(path) or bool(tag_folders(path))

    def examine(self, path: Path, notes: Notes, examine: Examine) -> None:
        if is_tag_folder(path):
            _examine_tag(path, notes, examine)
            return
        folders = tag_folders(path)
        tag = _latest(path / LATEST, notes)
        if tag is not None and path / tag not in folders:
            notes.damaged(path / tag, "missing or empty; latest names it")
        for folder in folders:
            _examine_tag(folder, notes, examine)


def _latest(file: Path, notes: Notes) -> str | None:
    if not file.exists():
        notes.unchecked(file, "missing: a loader needs the tag by name")
        return None
    with notes.looking_at(file):
        tag = read_small(file).decode("utf-8", "replace").strip()
        if not tag or Path(tag).name != tag:
            notes.damaged(file, "empty or not the name of a folder")
            return None
        notes.passed("structure")
        return tag
    return None


def _examine_tag(folder: Path, notes: Notes, examine: Examine) -> None:
    files = {file.name for file in folder.iterdir() if file.is_file()}
    world = _world(folder, files)
    for name in sorted(_wanted(files, world)):
        if name not in files:
            notes.damaged(folder / name, "missing; the other files say that it belongs to them")
    for name in sorted(files):
        if _MODEL.fullmatch(name) or _OPTIMIZER.fullmatch(name) or _OTHER.fullmatch(name):
            examine(folder / name, notes)
    if not world.is_told:
        notes.unsure_of_more(
            folder, "whether the last ranks' files are missing: no file tells how many"
        )


def _world(folder: Path, files: set[str]) -> _World:
    models = [match for name in files if (match := _MODEL.fullmatch(name))]
    optimizers = [match for name in files if (match := _OPTIMIZER.fullmatch(name))]
    data = [int(m[1]) for m in models if m[1]] + [int(m[2]) for m in optimizers]
    model = [int(m[2]) for m in models] + [int(m[3]) for m in optimizers]
    stage = 3 if any(m[1] for m in models) else 1 if optimizers else 0
    counted = _World(max(data, default=0) + 1, max(model, default=0) + 1, stage, is_told=False)
    for match in sorted(models, key=lambda found: found[0]):
        content = read_plain(folder / match[0])
        told = _told(content.plain if content else None)
        if told is not None:
            return _World(
                max(told.data_ranks, counted.data_ranks),
                max(told.model_ranks, counted.model_ranks),
                max(told.stage, counted.stage),
                is_told=True,
            )
    return counted


def _told(plain: Any) -> _World | None:
    if not isinstance(plain, dict):
        return None
    data, model = plain.get("dp_world_size"), plain.get("mp_world_size")
    if not isinstance(data, int) or not isinstance(model, int):
        return None
    if not 0 < data * model <= MAX_RANKS:
        # No job has so many: what the file says is worth nothing.
        return None
    config = plain.get("ds_config")
    zero = config.get("zero_optimization") if isinstance(config, dict | Inert) else None
    stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    return _World(data, model, stage if isinstance(stage, int) else 0, is_told=True)


def _wanted(files: set[str], world: _World) -> set[str]:
    """Files that a checkpoint of so many ranks has."""
    pairs = [(d, m) for d in range(world.data_ranks) for m in range(world.model_ranks)]
    prefix = next((m[1] for name in sorted(files) if (m := _OPTIMIZER.fullmatch(name))), "")
    wanted = set()
    if world.stage == 3:
        wanted |= {f"zero_pp_rank_{d}_mp_rank_{m:02d}_model_states.pt" for d, m in pairs}
    elif not any(name.startswith("layer_") for name in files):
        wanted |= {f"mp_rank_{m:02d}_model_states.pt" for m in range(world.model_ranks)}
    if world.stage >= 1:
        wanted |= {f"{prefix}zero_pp_rank_{d}_mp_rank_{m:02d}_optim_states.pt" for d, m in pairs}
    return wanted
