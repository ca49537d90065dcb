"""The catalogue of a run directory: what happened to its checkpoints, one line each.

It only helps: whether something is a checkpoint its manifest says. Without the catalogue,
attempts are counted anew and checkpoints are found in the folders that are known otherwise.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slav1.checkpoint._disk import Disk
from slav1.checkpoint.manifest import Manifest


class Catalogue:
    """Appends and reads the lines of one run.

    Args:
        file: The catalogue; need not exist.
        run: Identity of the run; lines of others are passed over.
        disk: Where it lies.
    """

    def __init__(self, file: Path, run: str, disk: Disk) -> None:
        self._file = file
        self._run = run
        self._disk = disk

    def add(self, what: str, path: Path, manifest: Manifest | None = None, **more: Any) -> None:
        """Adds a line and waits until it is on the medium."""
        line: dict[str, Any] = {
            "time_ns": time.time_ns(),
            "what": what,
            "run": self._run,
            "path": str(path),
            **more,
        }
        if manifest is not None:
            line |= {
                "step": manifest.step,
                "sequence": manifest.sequence,
                "seal": manifest.seal,
                "is_healthy": manifest.is_healthy,
                "training": manifest.training,
            }
        # A line that was torn by a crash must not swallow the next one.
        torn = b"" if self._ends_with_a_line() else b"\n"
        self._disk.append(self._file, torn + json.dumps(line).encode() + b"\n")
        self._disk.fsync(self._file)

    def lines(self) -> Iterator[dict[str, Any]]:
        """All whole lines of this run, oldest first."""
        try:
            text = self._file.read_bytes()
        except FileNotFoundError:
            return
        for raw in text.split(b"\n"):
            try:
                line = json.loads(raw)
            except ValueError:
                continue
            if isinstance(line, dict) and line.get("run") == self._run and "what" in line:
                yield line

    def folders(self) -> list[Path]:
        """Folders that checkpoints of this run were committed to."""
        paths = [Path(line["path"]).parent for line in self.lines() if line["what"] == "committed"]
        return list(dict.fromkeys(paths))

    def gone(self, training: str | None) -> dict[str, tuple[int, str]]:
        """What was committed and, as far as lines tell, neither removed nor still usable.

        Args:
            training: Only checkpoints of this run folder; None for all of the run.

        Returns:
            By path, its sequence and what became of it. One that still lies there is among
            them too.
        """
        fate: dict[str, tuple[int, str]] = {}
        for line in self.lines():
            what, path = line["what"], str(line.get("path"))
            if what == "committed" and training in (None, line.get("training")):
                reason = (
                    "it was committed, and what lies at its place is not it, or has no manifest."
                )
                fate[path] = int(line.get("sequence", 0)), reason
            elif what == "removed":
                fate.pop(path, None)
            elif what == "set_aside" and path in fate:
                reason = f"it was set aside as {line.get('aside')}: {line.get('reason')}"
                fate[path] = fate[path][0], reason
        return fate

    def num_attempts(self, manifest: Manifest) -> int:
        """How often a checkpoint was resumed from since a later step was last committed, without
        those that people broke off."""
        num = 0
        for line in self.lines():
            if line["what"] == "committed" and line.get("step", -1) > manifest.step:
                num = 0
            elif line["what"] == "resumed" and line.get("seal") == manifest.seal:
                num += 1
            elif line["what"] == "interrupted" and line.get("seal") == manifest.seal:
                num = max(0, num - 1)
        return num

    def last_sequence(self) -> int:
        """The highest sequence number committed so far, 0 if none."""
        return max((int(line.get("sequence", 0)) for line in self.lines()), default=0)

    def _ends_with_a_line(self) -> bool:
        try:
            with self._file.open("rb") as file:
                if file.seek(0, os.SEEK_END) == 0:
                    return True
                file.seek(-1, os.SEEK_END)
                return file.read(1) == b"\n"
        except FileNotFoundError:
            return True
