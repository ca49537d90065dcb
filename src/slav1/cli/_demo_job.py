"""The processes of the demo's job: started, looked after, and ended without a remainder."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from slav1.startup.restarts import SHARED_STORE_OFF

GRACE_S = 2.0
"""Usual time from SIGTERM to SIGKILL, in seconds."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

RUN_ID = "SLA_RUN_ID"
"""Variable that names the run; every process of the job inherits it."""

# A cluster's or launcher's variables would make the job join another job than ours.
_FOREIGN = (
    *("LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED"),
)


def environment_of_job(
    surroundings: Mapping[str, str], *, run_id: str, inject: str | None
) -> dict[str, str]:
    """Returns the environment for the job.

    Args:
        surroundings: Environment of this process.
        run_id: Name of the run.
        inject: Fault for ``SLA_INJECT``; None for none.
    """
    kept = {
        name: value
        for name, value in surroundings.items()
        if name not in _FOREIGN and not name.startswith(("SLA_", "TORCHELASTIC_", "ACCELERATE_"))
    }
    # More than one thread a rank only makes ranks on the same cores wait for each other.
    ours = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", RUN_ID: run_id}
    # Ranks that are started again must not find the addresses of dead ones.
    ours[SHARED_STORE_OFF] = "1"
    return kept | ours | ({} if inject is None else {"SLA_INJECT": inject})


class Job:
    """One process that starts the others, in a session of their own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Starts it.

        Args:
            command: Program and arguments.
            environment: As :func:`environment_of_job` makes it.
            log: File that takes everything the job prints; made anew.

        Raises:
            OSError: If the file can't be made, or no process started.
        """
        self._run_id = environment[RUN_ID]
        with log.open("wb") as output:
            self._main = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal then reaches only us, and we end the job.
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it is one system call
            )

    @property
    def pid(self) -> int:
        """Process id of rank 0."""
        return self._main.pid

    def exit_status(self) -> int | None:
        """Exit status of rank 0; None while it runs, negative if a signal ended it."""
        return self._main.poll()

    def ranks(self) -> list[int]:
        """Process ids of rank 0 and everything below it."""
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.pid).children(recursive=True)
            return [self.pid, *(child.pid for child in children)]
        return []

    def processes(self) -> list[psutil.Process]:
        """Every living process of this job, also one whose parent is gone."""
        self._main.poll()
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def wait_until_gone(self, limit_s: float) -> list[psutil.Process]:
        """Returns what is still alive once all have ended, or after ``limit_s``."""
        end_s = time.monotonic() + limit_s
        while (left := self.processes()) and time.monotonic() < end_s:
            time.sleep(0.05)
        return left

    def end(self, *, grace_s: float = GRACE_S) -> None:
        """Ends every process of the job; returns when none is left.

        Args:
            grace_s: Time from SIGTERM to SIGKILL, and for the monitor after that, in seconds.
        """
        # The monitor has a session of its own. It ends by itself once the ranks have, and
        # completes the ledger first.
        _send(filter(self._is_rank, self.processes()), signal.SIGTERM)
        _send(filter(self._is_rank, self.wait_until_gone(grace_s)), signal.SIGKILL)
        while left := self.wait_until_gone(grace_s):
            _send(left, signal.SIGKILL)

    def _is_rank(self, process: psutil.Process) -> bool:
        with contextlib.suppress(OSError):
            return os.getsid(process.pid) == self.pid
        return False

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            is_ours = os.getsid(process.pid) == self.pid or (
                process.environ().get(RUN_ID) == self._run_id
            )
            return is_ours and process.status() != psutil.STATUS_ZOMBIE
        return False


def _end_with_parent() -> None:
    """Lets the kernel end the job if this demo is killed and can't do it any more."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _send(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
