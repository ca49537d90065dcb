"""The numbered folders of Accelerate's automatic naming."""

import os
import re
from pathlib import Path
from typing import Any

from slav1.checkpoint.workshop import workshop_of

_NAME = re.compile(r"checkpoint_(\d+)$")


class NumberedFolders:
    """The folders ``checkpoint_N`` of one project. Nothing here talks to other ranks."""

    def __init__(self, project_dir: str) -> None:
        """Takes the host's ``project_dir``."""
        self.root = Path(os.path.realpath(Path(project_dir) / "checkpoints"))
        # The host takes whatever lies among the numbered folders for a checkpoint.
        self.workshop = workshop_of(self.root)

    def next_number(self, at_least: int) -> int:
        """A number above all that were ever used, those of rejected checkpoints included.

        Args:
            at_least: The host's own count.
        """
        folders = [folder for folder in (self.root, self.workshop) if folder.is_dir()]
        names = [path.name for folder in folders for path in folder.iterdir()]
        used = [int(found[1]) for name in names if (found := _NAME.search(name))]
        return max([at_least, *(number + 1 for number in used)])

    def path_of(self, number: int) -> Path:
        """Where the checkpoint of that number lies."""
        return self.root / f"checkpoint_{number}"

    def newest(self) -> Path | None:
        """The one with the highest number, whoever made it; None if there is none."""
        paths = self.root.iterdir() if self.root.is_dir() else ()
        found = [int(match[1]) for path in paths if (match := _NAME.fullmatch(path.name))]
        return self.path_of(max(found)) if found else None


def folder_named(output_dir: Any) -> Path:
    """The folder for a checkpoint that a user names, as the host takes it.

    Raises:
        FileExistsError: If a file has that name.
        ValueError: If it is the working directory, or holds that.
    """
    path = Path(output_dir).expanduser()
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path} is a file; save_state needs the name of a folder.")
    if Path.cwd().is_relative_to(os.path.realpath(path)):
        raise ValueError(
            f"output_dir is {os.fspath(output_dir)!r}, which the script works in: save_state "
            "replaces a folder as a whole. Name one of its own, such as 'checkpoint'."
        )
    # A link to another disk is there to be written through.
    return Path(os.path.realpath(path)) if path.is_dir() else path
