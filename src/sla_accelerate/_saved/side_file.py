"""What the contract keeps beside the files of a checkpoint.

A file of its own, not an object registered with Accelerate: that one refuses to load
when the number of registered objects differs from the number that was saved, so every
checkpoint made without the contract would stop loading.
"""

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

NAME = "sla_state.json"
"""The file in the checkpoint's folder."""

VERSION = 1
"""Version of its content."""

_log = logging.getLogger("sla_accelerate")


class Saved(NamedTuple):
    """What the file holds."""

    step: int
    """Step that ended last, counted from 0; -1 if unknown."""

    detectors: Any
    """The detectors' memories as plain values; None if there are none."""

    gradients: Any = None
    """What is known about gradients, as plain values; None if nothing is."""


def write(folder: Path, saved: Saved) -> None:
    """Writes the file, whole or not at all; OSError if that fails."""
    part = folder / f".{NAME}.part"
    part.write_text(json.dumps({"version": VERSION, **saved._asdict()}))
    part.replace(folder / NAME)


def read(folder: Path) -> Saved | None:
    """Reads the file; says so and returns None if there is none that can be used."""
    try:
        content = json.loads((folder / NAME).read_text())
        version, step = content["version"], int(content["step"])
    except FileNotFoundError:
        _log.warning(
            "The checkpoint %s was made without the stability contract: the detectors start "
            "with empty windows and steps are counted from where they are.",
            folder,
        )
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        _log.warning("%s can't be read (%s); the detectors start afresh.", folder / NAME, error)
        return None
    if version != VERSION:
        _log.warning(
            "%s is of version %s, this is version %s; the detectors start afresh.",
            *(folder / NAME, version, VERSION),
        )
        return None
    return Saved(step, content.get("detectors"), content.get("gradients"))
