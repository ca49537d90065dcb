"""What the loaders of one rank are given, and what their workers have said."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import ref

from slav1.recorder.block import anonymous_file
from slav1.seeds.workers import (
    begin_pass,
    bind_workers,
    has_workers,
    release_workers,
    watch_workers,
)

MAX_EPOCHS = 3
"""Passes of which the workers' numbers are told."""


class WorkerWatch:
    """Looks after the worker processes of all loaders of a rank. Keeps no loader alive."""

    def __init__(self) -> None:
        """Starts with nothing."""
        self._fd: int | None = None
        self._place = 0
        self._first_epoch: int | None = None
        # No set of them: a loader may be compared by what it holds, and have no hash.
        self._loaders: list[ref[Any]] = []

    def watch(self, loaders: Iterable[Any], epoch: int, *, seed: int | None) -> None:
        """The data of a pass is about to be iterated.

        Args:
            loaders: Those that it comes from; those without worker processes are left alone.
            epoch: The pass, from 0.
            seed: The rank's seed for its workers; None leaves them theirs.
        """
        for number, loader in enumerate(loaders):
            if not has_workers(loader):
                continue
            self._first_epoch = epoch if self._first_epoch is None else self._first_epoch
            watch_workers(loader, report=self._report(), number=number, seed=seed)
            begin_pass(loader, epoch, is_told=epoch < self._first_epoch + MAX_EPOCHS)
            self._keep(loader)

    def bind(self, loaders: Iterable[Any]) -> None:
        """Other data is about to be iterated: its workers only end with this process.

        Args:
            loaders: As for :meth:`watch`.
        """
        for loader in loaders:
            if has_workers(loader):
                bind_workers(loader)
                self._keep(loader)

    def news(self) -> list[dict[str, Any]]:
        """What workers of the first passes have said since the last time; waits for nobody."""
        if self._fd is None:
            return []
        num_bytes = os.fstat(self._fd).st_size - self._place
        lines = os.pread(self._fd, num_bytes, self._place).splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        self._place += sum(map(len, whole))
        return [json.loads(line) for line in whole]

    def close(self) -> None:
        """Gives the loaders back what was theirs."""
        for reference in self._loaders:
            release_workers(reference())
        self._loaders.clear()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _keep(self, loader: Any) -> None:
        alive = [one for one in self._loaders if one() is not None]
        is_known = any(one() is loader for one in alive)
        self._loaders = alive if is_known else [*alive, ref(loader)]

    def _report(self) -> Path:
        """A file in memory that workers find by this process, and that goes with it."""
        if self._fd is None:
            self._fd = anonymous_file("slav1-workers")
        return Path(f"/proc/{os.getpid()}/fd/{self._fd}")
