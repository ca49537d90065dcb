"""Keeps checkpoints: knows which there are, and removes only what may go."""

import os
from collections.abc import Sequence
from pathlib import Path

from slav1.checkpoint._commit import discard
from slav1.checkpoint._find import Found, find_checkpoints
from slav1.checkpoint._line import Choice, Line
from slav1.checkpoint._names import beside, sidecar_of
from slav1.checkpoint.manifest import Manifest
from slav1.checkpoint.retention import MIN_NEWER, removable
from slav1.checkpoint.verify import verify_path


class Keep:
    """The checkpoints of a run that one rank knows of.

    Args:
        line: The run's checkpoint line.
        roots: Folders where checkpoints may lie beside those in the catalogue.
    """

    def __init__(self, line: Line, roots: Sequence[Path]) -> None:
        self._line = line
        self._roots = [Path(os.path.realpath(root)) for root in roots]
        self._is_scanned = False
        self._unwanted: set[Path] = set()

    def scan(self) -> None:
        """Learns, once, which checkpoints there are from earlier starts."""
        with self._line.lock:
            if self._is_scanned:
                return
            self._is_scanned = True
            try:
                found = self._find()
            except OSError as error:
                # Fewer are known then, so fewer are removed; and no rank stays away from a save.
                message = f"Earlier checkpoints could not be looked for: {error}."
                self._line.peers.record("notice", message)
                return
            for one in found:
                if one.generations is not None:
                    self._line.known.setdefault(one.path, one.generations.new)

    def _find(self) -> list[Found]:
        folders = [*self.folders(), *self._line.catalogue.folders()]
        return find_checkpoints(dict.fromkeys(folders), self._line.run)

    def folders(self) -> list[Path]:
        """Where checkpoints of the run may lie."""
        with self._line.lock:
            known = [path.parent for path in self._line.known]
        return list(dict.fromkeys([*self._roots, self._line.own_folder, *known]))

    def add(self, path: Path, manifest: Manifest) -> None:
        """Takes in a checkpoint that has just been proved."""
        with self._line.lock:
            self._line.known[path] = manifest
            self._line.proved.add(manifest.seal)
            if self._line.first_sequence is None:
                self._line.first_sequence = manifest.sequence
            self._unwanted.discard(path)

    def forget(self, path: Path) -> None:
        """A host has removed a checkpoint: what is left of it goes too."""
        with self._line.lock:
            self._unwanted.discard(path)
            manifest = self._line.known.pop(path, None)
        if manifest is None or not self._line.is_leader:
            return
        sidecar = sidecar_of(path)
        try:
            if sidecar.exists() and not path.exists():
                self._line.disk.unlink(sidecar)
            self._line.catalogue.add("removed", path, manifest)
        except OSError as error:
            self._line.peers.record("notice", f"What is left of {path} stays: {error}.")

    def last_good(self) -> Choice | None:
        """The newest healthy checkpoint, without reading it."""
        self.scan()
        for path, manifest in self._line.newest_first():
            if manifest.is_healthy and path.exists():
                return self._line.choice(path, manifest)
        return None

    def may_remove(self, path: Path, *, is_guarded: bool) -> bool:
        """Whether a host may remove a checkpoint now; remembers it if not."""
        self.scan()
        entries = self._line.newest_first()
        num_newer = min(MIN_NEWER, self._line.settings.keep)
        if path not in dict(entries):
            return not is_guarded or len(self._good(entries)) >= num_newer
        if path in self._removable(entries, num_newer):
            return True
        with self._line.lock:
            self._unwanted.add(path)
        return False

    def prune(self, folder: Path, keep: int) -> list[Path]:
        """Removes older checkpoints that lie directly in a folder."""
        self.scan()
        entries = [one for one in self._line.newest_first() if one[0].parent == folder]
        gone = self._removable(entries, max(MIN_NEWER, keep))
        for number, path in enumerate(gone):
            try:
                self._discard(path)
            except OSError as error:
                # Too much left behind harms nobody; it is tried again after the next save.
                self._line.peers.record("notice", f"{path} could not be removed: {error}.")
                return gone[:number]
        return gone

    def tidy(self) -> None:
        """Removes what may go after a commit. A failure leaves too much, never too little."""
        try:
            self.prune(self._line.own_folder, self._line.settings.keep)
            with self._line.lock:
                unwanted = list(self._unwanted)
            for path in unwanted:
                if self.may_remove(path, is_guarded=False):
                    self._discard(path)
        except OSError as error:
            self._line.peers.record("notice", f"Old checkpoints could not be removed: {error}.")

    def _discard(self, path: Path) -> None:
        with self._line.lock:
            manifest = self._line.known.pop(path, None)
            self._unwanted.discard(path)
        if manifest is None or not path.exists():
            return
        spare = beside(path, "gone", self._line.writer, manifest.sequence, manifest.step)
        discard(path, spare, self._line.disk)
        self._line.catalogue.add("removed", path, manifest)

    def _removable(self, entries: Sequence[tuple[Path, Manifest]], num_newer: int) -> list[Path]:
        good = self._good(entries)
        paths = [path for path, _ in entries]
        return removable(paths, [path in good for path in paths], num_newer)

    def _good(self, entries: Sequence[tuple[Path, Manifest]]) -> set[Path]:
        return {path for path, one in entries if one.is_healthy and self._is_proved(path, one)}

    def _is_proved(self, path: Path, manifest: Manifest) -> bool:
        """Whether this process has read it back; if not yet, it does so now."""
        if not path.exists():
            return False
        if manifest.seal in self._line.proved:
            return True
        report = verify_path(path)
        if report.problems or report.manifest is None or report.manifest.seal != manifest.seal:
            return False
        self._line.proved.add(manifest.seal)
        return True
