"""Where a checkpoint lies: on a file system of this machine, or behind a URL."""

import os
from pathlib import Path
from typing import Any

_LOCAL = ("file://", "local://")


def is_remote(path: Any) -> bool:
    """Whether a path is a URL of another machine's storage, such as ``s3://``."""
    text = os.fspath(path)
    return "://" in text and not text.startswith(_LOCAL)


def local_path(path: Any) -> Path:
    """A path of this machine, whether or not it came as a URL."""
    text = os.fspath(path)
    for prefix in _LOCAL:
        text = text.removeprefix(prefix)
    return Path(text)
