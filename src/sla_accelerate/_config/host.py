"""Accelerate's own configuration: its questionnaire, its default, its reader."""

import tempfile
from pathlib import Path
from typing import Any

import yaml
from accelerate.commands.config import config as questionnaire  # type: ignore[import-untyped]
from accelerate.commands.config.config_args import (  # type: ignore[import-untyped]
    ClusterConfig,
    default_yaml_config_file,
    load_config_from_file,
)
from accelerate.commands.config.default import (  # type: ignore[import-untyped]
    write_basic_config,
)


def default_file() -> Path:
    """The file that Accelerate reads when none is named, and writes first."""
    return Path(default_yaml_config_file)


def refusal_of(file: Path) -> str:
    """Why Accelerate's own reader does not take a file; empty if it does."""
    try:
        _as_host_reads(file)
    except AttributeError:
        # It asks whatever stands there for its keys.
        return "it must hold a mapping of settings. Remove an empty file, and a new one is written."
    except (ValueError, TypeError, KeyError, OSError, yaml.YAMLError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def has_place(file: Path) -> bool:
    """Whether a file that Accelerate reads is for machines of one's own: only that kind has a
    section for the contract."""
    return isinstance(_as_host_reads(file), ClusterConfig)


def asked_for() -> Any:
    """Asks what ``accelerate config`` asks; returns its answer as an object of the host's."""
    return questionnaire.get_user_input()


def usual() -> Any:
    """What ``accelerate config default`` would write for this machine."""
    with tempfile.TemporaryDirectory() as folder:
        # It is JSON whatever the name says, and the host tells the two apart by the name.
        path = Path(folder, "usual.json")
        write_basic_config(save_location=str(path))
        return _as_host_reads(path)


def text_of(config: Any, *, as_json: bool) -> str:
    """Writes an object of the host's as the host does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config")
        (config.to_json_file if as_json else config.to_yaml_file)(str(path))
        return path.read_text(encoding="utf-8")


def _as_host_reads(file: Path) -> Any:
    return load_config_from_file(str(file))
