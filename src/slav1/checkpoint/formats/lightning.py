"""What Lightning's Trainer saves: a file, or a folder of DCP with one file beside it."""

from dataclasses import dataclass
from pathlib import Path

from slav1.checkpoint.formats._notes import Examine, Notes
from slav1.checkpoint.formats._reading import head_of
from slav1.checkpoint.formats._torch_zip import MAGIC
from slav1.checkpoint.formats.dcp_folder import DcpFolder, is_dcp
from slav1.checkpoint.formats.torch_file import TorchFile, read_plain

META = "meta.pt"
NEEDED_KEYS = ("epoch", "global_step", "pytorch-lightning_version", "loops")
"""Keys that every checkpoint of a Trainer has."""


@dataclass(frozen=True, slots=True)
class LightningFile:
    """A file that a Trainer saved."""

    name: str = "Lightning file"

    def claims(self, path: Path) -> bool:
        if path.suffix != ".ckpt" or head_of(path, 4) != MAGIC:
            return False
        content = read_plain(path)
        # One that does not read is as good as any file of torch: damaged.
        return content is not None and _is_of_trainer(content.plain)

    def examine(self, path: Path, notes: Notes, examine: Examine) -> None:
        TorchFile().examine(path, notes, examine)
        content = read_plain(path)
        if content is not None:
            _check_keys(path, content.plain, ("state_dict", *NEEDED_KEYS), notes)


@dataclass(frozen=True, slots=True)
class LightningFolder:
    """A folder that a Trainer saved under FSDP or ModelParallelStrategy."""

    name: str = "Lightning sharded folder"

    def claims(self, path: Path) -> bool:
        has_name = path.suffix == ".ckpt" and path.is_dir()
        return path.is_dir() and ((path / META).exists() or has_name) and is_dcp(path)

    def examine(self, path: Path, notes: Notes, examine: Examine) -> None:
        DcpFolder().examine(path, notes, examine)
        meta = path / META
        if not meta.exists():
            notes.damaged(meta, "missing: the save did not end")
            return
        examine(meta, notes)
        content = read_plain(meta)
        if content is not None:
            _check_keys(meta, content.plain, NEEDED_KEYS, notes)


def _is_of_trainer(plain: object) -> bool:
    return isinstance(plain, dict) and "pytorch-lightning_version" in plain


def _check_keys(path: Path, plain: object, keys: tuple[str, ...], notes: Notes) -> None:
    lacking = [key for key in keys if not (isinstance(plain, dict) and key in plain)]
    if lacking and _is_of_trainer(plain):
        notes.damaged(path, f"lacks {', '.join(lacking)}, which every Trainer saves")
