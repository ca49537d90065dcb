"""The folder of one run: its name, its creation, its attempts."""

import errno
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from slav1.ledger import read_ledger

_FULL = (errno.ENOSPC, errno.EDQUOT)


class RunDirectoryError(OSError):
    """The run directory can't be used."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"run_dir {path} can't be used: {reason}. Training has not started. Give a folder "
            "that this user may write to, as run_dir or in SLA_RUN_DIR."
        )
        self.path = path


def choose_run_id(environment: Mapping[str, str], num_earlier: int) -> str:
    """Names a run, the same way again when an elastic launcher restarts it.

    Args:
        environment: Environment variables; ``SLA_RUN_ID`` wins.
        num_earlier: Runs this process had before, as with a second ``fit``.

    Returns:
        The name of the run's folder.
    """
    suffix = f"-fit{num_earlier + 1}" if num_earlier else ""
    if given := environment.get("SLA_RUN_ID"):
        return re.sub(r"[^\w.-]", "_", given) + suffix
    if "TORCHELASTIC_RUN_ID" in environment:
        # The agent outlives its workers: it is what all attempts have in common.
        agent = psutil.Process(os.getppid())
        started = time.strftime("%Y%m%d-%H%M%S", time.localtime(agent.create_time()))
        return f"{started}-elastic{agent.pid}{suffix}"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}{suffix}"


def open_run_folder(run_dir: Path, run_id: str) -> tuple[Path, int, bool]:
    """Makes the folder of a run, or finds it again after a restart.

    Args:
        run_dir: Folder of all runs; is made.
        run_id: Name of this run.

    Returns:
        The folder, the number of this attempt from 0, and whether the disk is full.
        A full disk is no error: training is worth more than its ledger.

    Raises:
        RunDirectoryError: If the folder can't be made or written to.
    """
    folder = run_dir.absolute() / run_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        if error.errno in _FULL and folder.is_dir():
            return folder, 0, True
        raise RunDirectoryError(run_dir, error.strerror or str(error)) from error
    ledger = folder / "ledger.jsonl"
    entries = read_ledger(ledger) if ledger.exists() else []
    attempt = max((entry.attempt + 1 for entry in entries), default=0)
    return folder, attempt, False
