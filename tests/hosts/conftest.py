"""What the host tests share: ranks that start in milliseconds, and their ledgers."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from _forks import ForkServer
from _launch import Ended, _environment, free_port

SCRIPTS = Path(__file__).parent / "_scripts"
# Tests in this process train the same toys as the scripts.
sys.path.append(str(SCRIPTS))
TICK_S = 0.02


@dataclass(slots=True, kw_only=True)
class RankJob:
    """Ranks that run one script. Leaving the ``with`` block kills what is left."""

    server: ForkServer
    folder: Path
    timeout_s: float
    pids: dict[int, int] = field(default_factory=dict)
    started_s: float = field(default_factory=time.monotonic)
    ended_s: dict[int, float] = field(default_factory=dict)

    def __enter__(self) -> "RankJob":  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait(self) -> Ended:
        """Waits until every rank has ended; TimeoutError after ``timeout_s``."""
        while not self._has_ended():
            if time.monotonic() - self.started_s > self.timeout_s:
                self.kill()
                raise TimeoutError(f"Still ran after {self.timeout_s} s:\n{self.ended()}")
            time.sleep(TICK_S)
        return self.ended()

    def wait_for(self, text: str, *, rank: int = 0) -> None:
        """Waits until ``text`` stands in a rank's output; TimeoutError if it never does."""
        while text not in self.read(rank, "out") + self.read(rank, "err"):
            is_late = time.monotonic() - self.started_s > self.timeout_s
            if is_late or self.server.exit_code(self.pids[rank]) is not None:
                self.kill()
                raise TimeoutError(f"Rank {rank} never said {text!r}:\n{self.ended()}")
            time.sleep(TICK_S)

    def signal(self, rank: int, number: int) -> None:
        """Sends a signal to one rank."""
        os.kill(self.pids[rank], number)

    def read(self, rank: int, stream: str) -> str:
        """What a rank has written so far to ``out`` or ``err``."""
        path = self.folder / f"rank-{rank}.{stream}"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self) -> None:
        """Ends every rank that still runs, and waits until it has ended."""
        for pid in self.pids.values():
            if self.server.exit_code(pid) is None:
                try:
                    os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        deadline_s = time.monotonic() + 20
        while not self._has_ended() and time.monotonic() < deadline_s:
            time.sleep(TICK_S)

    def ended(self) -> Ended:
        """Exit codes, outputs and durations so far; -999 for a rank that still runs."""
        codes = {rank: self.server.exit_code(pid) for rank, pid in self.pids.items()}
        return Ended(
            exit_codes={rank: -999 if code is None else code for rank, code in codes.items()},
            out={rank: self.read(rank, "out") for rank in self.pids},
            err={rank: self.read(rank, "err") for rank in self.pids},
            seconds_s=dict(self.ended_s),
        )

    def _has_ended(self) -> bool:
        for rank, pid in self.pids.items():
            if self.server.exit_code(pid) is not None:
                self.ended_s.setdefault(rank, time.monotonic() - self.started_s)
        return len(self.ended_s) == len(self.pids)


@dataclass(slots=True, kw_only=True)
class Ranks:
    """What the fixture ``ranks`` gives: runs a script of ``_scripts`` on real ranks."""

    server: ForkServer
    folder: Path
    jobs: list[RankJob] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        """Folder of the runs of the last job."""
        return self.jobs[-1].folder / "runs"

    def __call__(self, script: str, *args: object, **how: Any) -> Ended:
        """Runs a script until all ranks have ended; arguments as in :meth:`start`."""
        with self.start(script, *args, **how) as job:
            return job.wait()

    def start(
        self,
        script: str,
        *args: object,
        num_ranks: int = 2,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> RankJob:
        """Starts a script and returns at once.

        Args:
            script: Name of a file in ``_scripts``.
            args: Its command line.
            num_ranks: World size.
            env: Environment variables for every rank.
            timeout_s: Seconds after which everything is killed.
        """
        folder = self.folder / f"job-{len(self.jobs)}"
        folder.mkdir()
        job = RankJob(server=self.server, folder=folder, timeout_s=timeout_s)
        self.jobs.append(job)
        port = free_port()
        for rank in range(num_ranks):
            own = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_ranks),
                "LOCAL_WORLD_SIZE": str(num_ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "SLA_RUN_DIR": str(folder / "runs"),
            }
            order = {
                "path": str(SCRIPTS / script),
                "args": [str(arg) for arg in args],
                "env": _environment() | own | dict(env or {}),
                "folder": str(folder),
                "rank": rank,
            }
            job.pids[rank] = self.server.fork(order)
        return job

    def close(self) -> None:
        """Ends whatever a test left running."""
        for job in self.jobs:
            job.kill()


@pytest.fixture
def ranks(fork_server: ForkServer, tmp_path: Path) -> Iterator[Ranks]:
    """Runs scripts of ``_scripts`` on rank processes that start in milliseconds."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    starter = Ranks(server=fork_server, folder=folder)
    yield starter
    starter.close()
