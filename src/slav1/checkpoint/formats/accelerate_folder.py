"""What Accelerate's ``save_state`` leaves: model, optimizer, scheduler, and each rank's RNG."""

import re
from dataclasses import dataclass
from pathlib import Path

from slav1.checkpoint.formats import deepspeed_folder as deepspeed
from slav1.checkpoint.formats._notes import Examine, Notes
from slav1.checkpoint.formats._weights import INDEX_SUFFIX, examine_if_there, examine_index
from slav1.checkpoint.formats.dcp_folder import is_dcp, ranks_in

_RANDOM = re.compile(r"random_states_(\d+)\.pkl")
_MODEL = re.compile(r"(?:model|pytorch_model)(?:_(\d+))?\.(?:safetensors|bin)")
_MODEL_SHARD = re.compile(r"(?:model|pytorch_model)(?:_\d+)?-\d+-of-\d+\.(?:safetensors|bin)")
_FSDP_MODEL = re.compile(r"pytorch_model_fsdp(?:_\d+)?(?:_rank\d+)?(?:\.bin)?")
_NUMBERED = {
    "optimizer": re.compile(r"optimizer(?:_(\d+))?(?:\.bin)?"),
    "scheduler": re.compile(r"scheduler(?:_(\d+))?\.bin"),
    "custom_checkpoint": re.compile(r"custom_checkpoint_(\d+)\.pkl"),
}
_OTHER = re.compile(r"(?:sampler|dl_state_dict)(?:_\d+)?\.bin|scaler\.pt|optimizer_rank\d+\.bin")


@dataclass(frozen=True, slots=True)
class AccelerateFolder:
    """A folder that ``Accelerator.save_state`` wrote."""

    name: str = "Accelerate folder"

    def claims(self, path: Path) -> bool:
        if not path.is_dir() or (path / "trainer_state.json").exists():
            return False
        names = {child.name for child in path.iterdir()}
        has_random = any(_RANDOM.fullmatch(name) for name in names)
        has_sharded = any(name.startswith("pytorch_model_fsdp") for name in names)
        has_model = any(_MODEL.fullmatch(name) for name in names)
        return has_random or has_sharded or ("optimizer.bin" in names and has_model)

    def examine(self, path: Path, notes: Notes, examine: Examine) -> None:
        names = {child.name for child in path.iterdir()}
        _examine_models(path, names, notes, examine)
        for kind in _NUMBERED:
            _examine_numbered(path, names, kind, notes, examine)
        if any(_NUMBERED["scheduler"].fullmatch(name) for name in names) and not _optimizers(path):
            notes.damaged(path / "optimizer.bin", "missing; there is a scheduler for it")
        others = (path / name for name in names if _OTHER.fullmatch(name))
        examine_if_there(others, examine, notes)
        _examine_random(path, names, notes, examine)


def _examine_models(path: Path, names: set[str], notes: Notes, examine: Examine) -> None:
    indices = [name for name in names if name.endswith(INDEX_SUFFIX)]
    single = [n for n in names if _MODEL.fullmatch(n) or _FSDP_MODEL.fullmatch(n)]
    shards = [name for name in names if _MODEL_SHARD.fullmatch(name)]
    tags = deepspeed.tag_folders(path)
    for name in sorted(indices):
        examine_index(path / name, notes, examine)
    for name in sorted(single):
        examine(path / name, notes)
    if tags:
        deepspeed.DeepSpeedFolder().examine(path, notes, examine)
    if shards and not indices:
        notes.damaged(path / f"{shards[0].split('-')[0]}{INDEX_SUFFIX}", "missing: no index")
    if not (indices or single or shards or tags):
        notes.damaged(
            path / "model.safetensors",
            "missing, and so are pytorch_model.bin, pytorch_model_fsdp_0 and files of DeepSpeed",
        )


def _examine_numbered(
    path: Path, names: set[str], kind: str, notes: Notes, examine: Examine
) -> None:
    """Looks at all of a kind, numbered from 0 without a gap."""
    found = {int(m[1] or 0): name for name in names if (m := _NUMBERED[kind].fullmatch(name))}
    for number in range(max(found, default=-1) + 1):
        if number in found:
            examine(path / found[number], notes)
        else:
            notes.damaged(path / _name_of(kind, number), "missing; one of a later number is there")
    if found and not _is_known_to_be_all(kind):
        last = found[max(found)]
        notes.unsure_of_more(path / last, "whether more of its kind belong to it: written nowhere")


def _is_known_to_be_all(kind: str) -> bool:
    # A scheduler goes with its optimizer; how many objects were registered is told nowhere.
    return kind == "scheduler"


def _name_of(kind: str, number: int) -> str:
    if kind == "custom_checkpoint":
        return f"custom_checkpoint_{number}.pkl"
    return f"{kind}_{number}.bin" if number else f"{kind}.bin"


def _optimizers(path: Path) -> list[Path]:
    found = [p for p in path.iterdir() if _NUMBERED["optimizer"].fullmatch(p.name)]
    return found or deepspeed.tag_folders(path) or list(path.glob("optimizer_rank*.bin"))


def _examine_random(path: Path, names: set[str], notes: Notes, examine: Examine) -> None:
    found = {int(match[1]) for name in names if (match := _RANDOM.fullmatch(name))}
    others = _ranks_of_others(path)
    num_ranks = max(found | others, default=0) + 1
    for rank in range(num_ranks):
        file = path / f"random_states_{rank}.pkl"
        if rank in found:
            examine(file, notes)
        else:
            why = f"the random state of rank {rank}, of at least {num_ranks} ranks"
            notes.damaged(file, f"missing: {why}")
    if not others:
        notes.unsure_of_more(
            path,
            "whether the last ranks' random states are missing: no file tells "
            "how many ranks there were",
        )


def _ranks_of_others(path: Path) -> set[int]:
    """Ranks that left a file of another kind."""
    found: set[int] = set()
    for child in path.iterdir():
        if is_dcp(child):
            found |= ranks_in(child)
        if deepspeed.is_tag_folder(child):
            found |= deepspeed.data_ranks_in(child)
    return found
