"""The notebook that formats write into while they look at one checkpoint."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from slav1.checkpoint.formats.examination import Examination, Finding


class Notes:
    """Collects what is found about the files below one folder."""

    def __init__(self, root: Path, *, finite: bool, proved: frozenset[Path] = frozenset()) -> None:
        """Starts empty.

        Args:
            root: Folder that names of files are relative to.
            finite: Whether to look for NaN and infinity too.
            proved: Files whose digest was checked; their checksums need no second look.
        """
        self.root = root
        self.finite = finite
        self.proved = proved
        self._files: dict[Path, int] = {}
        self._damages: dict[tuple[str, str], Finding] = {}
        self._unchecked: dict[tuple[str, str], Finding] = {}
        self._checks: Counter[str] = Counter()

    def damaged(self, file: Path, message: str) -> None:
        """Something is wrong with ``file``, or it is missing."""
        self._damages.setdefault((self._name(file), message), self._finding(file, message))

    def unchecked(self, file: Path, message: str) -> None:
        """Something about ``file`` can't be told."""
        self._unchecked.setdefault((self._name(file), message), self._finding(file, message))

    def unsure_of_more(self, file: Path, message: str) -> None:
        """Whether more files belong to it can't be told, unless a manifest lists them all."""
        if not self.proved:
            self.unchecked(file, message)

    def is_damaged(self, file: Path) -> bool:
        """Whether anything is known to be wrong with ``file``."""
        return any(name == self._name(file) for name, _ in self._damages)

    def knows(self, file: Path) -> bool:
        """Whether ``file`` was looked at, or anything is said about it."""
        name = self._name(file)
        return file in self._files or any(
            name == each for each, _ in (*self._damages, *self._unchecked)
        )

    def passed(self, check: str) -> None:
        """One more file passed the check of that name."""
        self._checks[check] += 1

    @contextmanager
    def looking_at(self, file: Path) -> Iterator[None]:
        """Counts ``file`` in, and takes what the operating system says about it as damage."""
        try:
            self._files[file] = file.stat().st_size
            _forget_cached(file)
            yield
        except OSError as error:
            self.damaged(file, f"can't be read: {error.strerror or error}")

    def examination(self, path: Path, form: str) -> Examination:
        """Puts together what was found."""
        return Examination(
            path=path,
            form=form,
            num_files=len(self._files),
            num_bytes=sum(self._files.values()),
            damages=tuple(self._damages.values()),
            unchecked=tuple(self._unchecked.values()),
            checks=dict(sorted(self._checks.items())),
        )

    def _name(self, file: Path) -> str:
        return os.path.relpath(file, self.root)

    def _finding(self, file: Path, message: str) -> Finding:
        return Finding(file=self._name(file), message=message)


Examine = Callable[[Path, Notes], None]
"""Looks at one file or folder inside a checkpoint, whatever its form."""


class Format(Protocol):
    """One form that checkpoints come in.

    A new form is one file in this package and one line in ``FORMATS``.
    """

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def claims(self, path: Path) -> bool:
        """Whether ``path`` looks like it, also where it is damaged. Reads next to nothing.

        Raises:
            OSError: If it can't be looked at.
        """
        ...

    def examine(self, path: Path, notes: Notes, examine: Examine) -> None:
        """Writes down what is wrong with ``path`` and what can't be told.

        Args:
            path: What it claims.
            notes: Where findings go.
            examine: Looks at a part that may be of another form.
        """
        ...


def _forget_cached(file: Path) -> None:
    """Lets the next read come from the disk, which is what the check is about."""
    opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(opened)
