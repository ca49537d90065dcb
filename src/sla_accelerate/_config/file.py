"""The contract in the one file that Accelerate is configured by.

The file is Accelerate's, and so are its keys: one that it does not know makes its launcher
refuse the file. What stands in a section that a launcher makes nothing of it keeps.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from accelerate.commands.config.config_args import (  # type: ignore[import-untyped]
    default_config_file,
)

from sla_accelerate._config.launcher import config_file_of_launcher
from slav1.contract import Contract, ContractError
from slav1.contract.document import KEYS
from slav1.contract.error import unknown_key, wrong_value
from slav1.contract.yaml_file import compose_yaml, plain_of
from slav1.session.settings_source import Document

HOME = "mpirun_config"
"""Section that the block is written into."""

SECTIONS = (
    *(HOME, "megatron_lm_config", "fsdp_config", "fp8_config", "dynamo_config"),
    "deepspeed_config",
)
"""Sections in which the block is found."""

BLOCK = "sla"
"""Key of the block."""

HOME_PATH = f"{HOME}.{BLOCK}"
"""Path of the block as it is written."""

VARIABLE = "SLA_CONFIG_FILE"
"""Environment variable that names the file."""

_RUN_DIR = "run_dir"
_PARTS = ("rules", "checkpoint", "seeds", "gradients", "monitor")


class Block(NamedTuple):
    """The block of a file."""

    section: str
    """Section that it stands in."""

    value: Any
    """What stands there, as plain values."""

    @property
    def path(self) -> str:
        """Path of the block in the file."""
        return f"{self.section}.{BLOCK}"


def find_document(
    environment: Mapping[str, str], named_by_launcher: Callable[[], str | None] | None = None
) -> Document | None:
    """Looks for the block where this process was started from.

    The first file that is named decides: the one in ``SLA_CONFIG_FILE``, then the one that
    the launcher of this process was given, then Accelerate's default file.

    Args:
        environment: Environment variables.
        named_by_launcher: Finds what the launcher was given; None looks at the processes
            above this one.

    Returns:
        What stands in the block; None without one.

    Raises:
        ContractError: If a file that is named can't be read, or the block can't be kept.
    """
    if named := environment.get(VARIABLE):
        document = read_document(Path(named), f"named by {VARIABLE}")
        if document is None:
            raise ContractError(
                f"{named}: {VARIABLE} names this file, and it has no block {HOME_PATH}. Write "
                f"one by sla-accelerate config --file {named}; a contract file of its own is "
                "named by SLA_CONTRACT.",
                file=named,
            )
        return document
    if given := (named_by_launcher or config_file_of_launcher)():
        return read_document(Path(given), "named by the launcher's --config_file")
    usual = Path(default_config_file)
    if not usual.is_file():
        return None
    if not os.access(usual, os.R_OK):
        return Document("", note=f"Accelerate's default file {usual} can't be read by this user.")
    return read_document(usual, "Accelerate's default file")


def read_document(path: Path, how: str = "") -> Document | None:
    """Reads the block of a file as settings.

    Args:
        path: The file.
        how: How it was found, for people.

    Returns:
        None if the file has no block.

    Raises:
        ContractError: If the file can't be read, or the block can't be kept; with the file
            and the path of the key.
    """
    try:
        block = read_block(_text_of(path))
        return None if block is None else _document(block, path, how)
    except ContractError as error:
        raise error.in_file(str(path)) from error


def read_block(text: str) -> Block | None:
    """Finds the block in a file's text; the rest of the file is none of our business.

    Raises:
        ContractError: If the text is not YAML, or the block stands where it can't.
    """
    # Also a file that we could not read is accepted as long as it does not speak of us.
    if not re.search(rf"\b{BLOCK}\b", text):
        return None
    root = compose_yaml(text)
    found = list(_homes(root))
    if len(found) > 1:
        paths = " and in ".join(
            f"{section}{'.' if section else ''}{BLOCK} (line {node.start_mark.line + 1})"
            for section, node in found
        )
        raise ContractError(f"the contract stands in {paths}; keep one of them.")
    if not found:
        return None
    ((section, node),) = found
    if section not in SECTIONS:
        where = f"{section}.{BLOCK}" if section else f"the key {BLOCK} outside of all sections"
        raise ContractError(
            f"the contract stands in {where}, where it changes or stops what Accelerate does; "
            f"it must stand in {HOME_PATH}."
        )
    return Block(section, _plain(node))


def speaks_of_contract(path: Path) -> bool:
    """Whether a file has a block, be it right or wrong; also if that can't be told."""
    try:
        return read_block(_text_of(path)) is not None
    except ContractError:
        return True


def _homes(root: Any) -> Iterator[tuple[str, Any]]:
    """Every block of a document, with the section that it stands in; none for no section."""
    if not isinstance(root, yaml.MappingNode):
        return
    for name, part in root.value:
        if name.value == BLOCK:
            yield "", part
        if isinstance(part, yaml.MappingNode):
            yield from ((name.value, inner) for key, inner in part.value if key.value == BLOCK)


def _plain(node: Any) -> Any:
    """The values of a block, as a contract's own reader takes them.

    Accelerate's ``config update`` writes an empty mapping as null; that of a part of the
    contract stands for one that says nothing.
    """
    raw = plain_of(node)
    if not isinstance(raw, dict):
        return raw
    kept = {key: value for key, value in raw.items() if not (key in _PARTS and value is None)}
    if isinstance(rules := kept.get("rules"), dict):
        kept["rules"] = {name: rule for name, rule in rules.items() if rule is not None}
    return kept


def _document(block: Block, path: Path, how: str) -> Document:
    try:
        raw = block.value
        if not isinstance(raw, dict):
            raise wrong_value("", raw, "a mapping that holds at least level, as in level: L1")
        for key in raw:
            if key not in (*KEYS, _RUN_DIR):
                _refuse_key(key, raw[key])
        rest = {key: value for key, value in raw.items() if key != _RUN_DIR}
        contract = None if _RUN_DIR in raw and not rest else Contract.from_dict(rest, path.parent)
        run_dir = raw.get(_RUN_DIR)
        if run_dir is not None and not (isinstance(run_dir, str) and run_dir.strip()):
            raise wrong_value(_RUN_DIR, run_dir, "the path of a folder")
    except ContractError as error:
        raise error.below(block.path) from error
    place = f"{path.absolute()} ({block.path}{f', {how}' if how else ''})"
    return Document(place, contract, run_dir)


def _refuse_key(key: Any, value: Any) -> None:
    try:
        # Knows more about names that stand in the wrong place.
        Contract.from_dict({"level": "L1", key: value})
    except ContractError as error:
        if not isinstance(key, str) or "stands under rules" in str(error):
            raise
        raise unknown_key(key, value, (*KEYS, _RUN_DIR)) from error


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ContractError("this is no text in UTF-8, which Accelerate's files are.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ContractError(f"Accelerate's file can't be read there: {reason}.") from error
