"""The start of a loader's worker processes: their random numbers are told, and set where the
contract says so, and they end with their trainer."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from slav1.seeds.generators import digests, seed_all, take
from slav1.seeds.worker_end import end_with


class WorkerStart:
    """Stands for a loader's ``worker_init_fn``: calls the user's own, then tells, in a file,
    which random numbers the worker begins with.

    It travels to the workers, by fork or pickled; nothing ever waits for it.
    """

    def __init__(
        self,
        own: Callable[[int], Any] | None,
        *,
        report: Path | None,
        loader: int = 0,
        seed: int | None = None,
    ) -> None:
        """Stores what a worker of this process needs.

        Args:
            own: The user's function; None if there is none.
            report: File that takes a line of each worker that starts; None if nobody asks.
            loader: Number of the loader.
            seed: The rank's seed, from which each worker gets numbers of its own after the
                user's function has run; None leaves them as they are.
        """
        self.own = own
        self.report = report
        self.loader = loader
        self.seed = seed
        self.trainer = os.getpid()
        self.epoch = 0
        """The pass that begins; to be set before its workers start."""
        self.is_told = True
        """Whether the workers of this pass tell what they begin with."""

    def __call__(self, worker: int) -> None:
        """Runs in the worker, before anything is loaded."""
        end_with(self.trainer)
        if self.own is not None:
            self.own(worker)
        if self.seed is not None:
            info = get_worker_info()
            drawn = 0 if info is None else info.seed
            seed_all(_mixed(self.seed, drawn, self.epoch, self.loader, worker))
        if self.is_told and self.report is not None:
            self._tell(worker, self.report)

    def _tell(self, worker: int, report: Path) -> None:
        line = {
            "loader": self.loader,
            "worker": worker,
            "epoch": self.epoch,
            "digests": digests(take()),
        }
        try:
            fd = os.open(report, os.O_WRONLY | os.O_APPEND)
        except OSError:
            # The training is over, or the disk is gone: no reason to end a worker.
            return
        try:
            os.write(fd, json.dumps(line).encode() + b"\n")
        except OSError:
            return
        finally:
            os.close(fd)


def watch_workers(loader: Any, *, report: Path, number: int, seed: int | None) -> None:
    """Puts a :class:`WorkerStart` in front of a loader's ``worker_init_fn``, once.

    Args:
        loader: A ``torch.utils.data.DataLoader``; one without workers stays as it is, and so
            does whatever is none: it starts its workers in a way of its own.
        report: File that takes their lines; it exists.
        number: Number of the loader.
        seed: See :class:`WorkerStart`.
    """
    if not has_workers(loader):
        return
    own = loader.worker_init_fn
    if isinstance(own, WorkerStart):
        if own.report is not None:
            return
        own = own.own
    loader.worker_init_fn = WorkerStart(own, report=report, loader=number, seed=seed)


def bind_workers(loader: Any) -> None:
    """Lets a loader's workers end with this process; their random numbers are left alone.

    Args:
        loader: As for :func:`watch_workers`; one that is watched stays as it is.
    """
    if has_workers(loader) and not isinstance(loader.worker_init_fn, WorkerStart):
        loader.worker_init_fn = WorkerStart(loader.worker_init_fn, report=None)


def has_workers(loader: Any) -> bool:
    """Whether a loader is one of torch's and starts worker processes."""
    return isinstance(loader, DataLoader) and loader.num_workers > 0


def begin_pass(loader: Any, epoch: int, *, is_told: bool = True) -> None:
    """Says to the workers that are about to start which pass they start for.

    Args:
        loader: As for :func:`watch_workers`.
        epoch: The pass, from 0.
        is_told: Whether they are to tell what they begin with.
    """
    start = getattr(loader, "worker_init_fn", None)
    if isinstance(start, WorkerStart):
        start.epoch, start.is_told = epoch, is_told


def release_workers(loader: Any) -> None:
    """Gives a loader its own ``worker_init_fn`` back."""
    start = getattr(loader, "worker_init_fn", None)
    if isinstance(start, WorkerStart):
        loader.worker_init_fn = start.own


def _mixed(*numbers: int) -> int:
    digest = hashlib.sha256(" ".join(map(str, numbers)).encode()).digest()
    return int.from_bytes(digest[:4], "big")
