"""Looks at any checkpoint: which form it has, whether it is whole, what can't be told."""

import re
from collections.abc import Iterator
from pathlib import Path

from slav1.checkpoint._names import MANIFEST, SIDECAR
from slav1.checkpoint.formats._notes import Format, Notes
from slav1.checkpoint.formats.accelerate_folder import AccelerateFolder
from slav1.checkpoint.formats.dcp_folder import DcpFolder
from slav1.checkpoint.formats.deepspeed_folder import DeepSpeedFolder
from slav1.checkpoint.formats.examination import Examination, NotACheckpointError
from slav1.checkpoint.formats.lightning import LightningFile, LightningFolder
from slav1.checkpoint.formats.pickle_file import PickleFile
from slav1.checkpoint.formats.safetensors_file import SafetensorsFile
from slav1.checkpoint.formats.torch_file import TorchFile
from slav1.checkpoint.formats.transformers_folder import TransformersFolder, WeightsFolder
from slav1.checkpoint.generations import manifest_file
from slav1.checkpoint.verify import ITSELF, Report, member_path, verify_path

FORMATS: tuple[Format, ...] = (
    TransformersFolder(),
    AccelerateFolder(),
    LightningFolder(),
    DeepSpeedFolder(),
    DcpFolder(),
    WeightsFolder(),
    LightningFile(),
    SafetensorsFile(),
    TorchFile(),
    PickleFile(),
)
"""All forms, the more particular before the more general: the first that claims wins."""

_USUAL_NAME = re.compile(r".*\.ckpt|checkpoint[-_]\d+|global_step\d+|epoch=\d+.*")
_MOST_NAMED = 5
# What lies beside weights and is no part of a state.
_BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "zero_to_fp32.py",
    "zero_to_torch.py",
    "README.md",
    MANIFEST,
)


def examine(path: Path, *, finite: bool = False) -> Examination:
    """Looks at one checkpoint without loading it. Nothing in it is run.

    Structure and completeness always; bytes where a manifest of ours or the format itself
    has checksums. Files are read from the disk in pieces.

    Args:
        path: A file or folder of any known form, ours or not.
        finite: Whether to look for NaN and infinity in the tensors too. Needs torch.

    Raises:
        NotACheckpointError: If it has no known form.
    """
    ours = _verify_ours(path)
    form = _form_of(path)
    is_ours = ours.manifest is not None or bool(ours.problems)
    if form is None and not is_ours:
        raise NotACheckpointError(path, _why_not(path))
    root = path if path.is_dir() else path.parent
    notes = Notes(root, finite=finite, proved=_proved(path, ours))
    for problem in ours.problems:
        notes.damaged(member_path(path, problem.member), f"{problem.check}: {problem.reason}")
    if is_ours:
        for text in ours.notes:
            notes.unchecked(path, text)
    for _ in notes.proved:
        notes.passed("digest")
    if form is not None and path.exists():
        form.examine(path, notes, _examine_part)
    if path.is_dir():
        _mention_others(path, notes)
    return notes.examination(path, form.name if form else "checkpoint of slav1")


def checkpoints_in(folder: Path) -> list[Path]:
    """Checkpoints that lie directly in a folder which is none itself, by name."""
    if not folder.is_dir():
        return []
    inner = (child for child in sorted(folder.iterdir()) if not child.name.startswith("."))
    return [child for child in inner if not _is_side_file(child) and _form_of(child) is not None]


class _Empty:
    """A folder with the name of a checkpoint, and nothing of one in it."""

    name = "folder"

    def claims(self, path: Path) -> bool:
        return path.is_dir() and bool(_USUAL_NAME.fullmatch(path.name)) and not checkpoints_in(path)

    def examine(self, path: Path, notes: Notes, examine: object) -> None:
        notes.damaged(path, "holds no file of a checkpoint, though it is named like one")


def _form_of(path: Path) -> Format | None:
    try:
        return next((form for form in (*FORMATS, _Empty()) if form.claims(path)), None)
    except OSError as error:
        raise NotACheckpointError(path, f"it can't be read: {error.strerror or error}.") from error


def _verify_ours(path: Path) -> Report:
    if not path.exists() and not manifest_file(path).exists():
        raise NotACheckpointError(path, "there is nothing of that name.")
    return verify_path(path)


def _proved(path: Path, ours: Report) -> frozenset[Path]:
    if ours.manifest is None:
        return frozenset()
    wrong = {problem.member for problem in ours.problems}
    members = ours.manifest.members.items()
    good = (name for name, digest in members if digest.root and name not in wrong)
    return frozenset(member_path(path, name) for name in good)


def _examine_part(path: Path, notes: Notes) -> None:
    if not path.exists():
        notes.damaged(path, "missing")
        return
    try:
        form = _form_of(path)
    except NotACheckpointError as error:
        notes.damaged(path, str(error))
        return
    if form is None:
        notes.damaged(path, "of no form that a part of a checkpoint has")
    else:
        form.examine(path, notes, _examine_part)


def _is_side_file(path: Path) -> bool:
    return path.name.endswith(SIDECAR) or path.name == ITSELF


def _mention_others(folder: Path, notes: Notes) -> None:
    """Names files that no format looked at."""
    others = list(_others(folder, notes))
    for file in others[:_MOST_NAMED]:
        notes.unchecked(file, "not looked at: no known part of this format")
    if len(others) > _MOST_NAMED:
        more = len(others) - _MOST_NAMED
        notes.unchecked(folder, f"{more} more files not looked at: no known parts of this format")


def _others(folder: Path, notes: Notes) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        is_known = file.name in _BESIDE or file in notes.proved or notes.knows(file)
        if file.is_file() and not is_known:
            yield file


def _why_not(path: Path) -> str:
    if path.is_dir():
        return "no file in this folder belongs to a form of checkpoint that is known here."
    return (
        "neither its name nor its first bytes are those of torch.save, Lightning, safetensors "
        "or a pickle."
    )
