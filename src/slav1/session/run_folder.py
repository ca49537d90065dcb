"""The folder of one run: its name, its creation, its attempts."""

import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from slav1.contract import Contract
from slav1.ledger import read_ledger

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a disk that has no room."""

_OF_AN_ATTEMPT = ("ring-*.bin", "stacks-*.txt")


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
        # A name of nothing but dots would lead out of the run directory.
        return re.sub(r"[^\w.-]|^\.+$", "_", given) + suffix
    if "TORCHELASTIC_RUN_ID" in environment:
        # The agent outlives its workers: it is what all attempts have in common.
        import psutil

        agent = psutil.Process(os.getppid())
        started = time.strftime("%Y%m%d-%H%M%S", time.localtime(agent.create_time()))
        return f"{started}-elastic{agent.pid}{suffix}"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}{suffix}"


def open_run_folder(run_dir: Path, run_id: str, *, num_restarts: int = 0) -> tuple[Path, int]:
    """Makes the folder of a run, or finds it again after a restart.

    What an earlier attempt left of rings and stacks is put aside into
    ``attempt-<number>``, so that nothing old is taken for new.

    Args:
        run_dir: Folder of all runs; is made.
        run_id: Name of this run.
        num_restarts: How often the launcher says that it restarted this run.

    Returns:
        The folder, and the number of this attempt from 0. A full disk is no error, even
        if the folder can't be made: training is worth more than its ledger.

    Raises:
        RunDirectoryError: If the folder can't be made, read or written to.
    """
    folder = run_dir.absolute() / run_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _try_to_write(folder)
        attempt = max(num_restarts, _num_attempts(folder / "ledger.jsonl"))
        if attempt:
            _put_aside(folder, folder / f"attempt-{attempt - 1}")
    except OSError as error:
        if error.errno in FULL:
            return folder, num_restarts
        raise RunDirectoryError(run_dir, error.strerror or str(error)) from error
    return folder, attempt


def save_contract(folder: Path, contract: Contract) -> bool:
    """Writes the contract as it is in force, whole or not at all.

    Returns:
        Whether it is written; a full disk may have room later.
    """
    return save_text(folder / "contract.yaml", contract.to_yaml())


def save_text(path: Path, text: str) -> bool:
    """Writes a file of a run folder, whole or not at all; returns whether it is written."""
    part = path.with_name(f".{path.name}-{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        return False
    return True


def _try_to_write(folder: Path) -> None:
    probe = folder / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(b"x" * 4096)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _num_attempts(ledger: Path) -> int:
    entries = read_ledger(ledger) if ledger.exists() else []
    return max((entry.attempt + 1 for entry in entries), default=0)


def _put_aside(folder: Path, aside: Path) -> None:
    for pattern in _OF_AN_ATTEMPT:
        for path in folder.glob(pattern):
            aside.mkdir(exist_ok=True)
            path.replace(aside / path.name)
