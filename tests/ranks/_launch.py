"""Starts real rank processes for tests, bounds them, and never leaves one behind.

Tests reach it through the fixture ``launch`` of ``tests/conftest.py``::

    def test_every_rank_says_its_number(launch):
        ended = launch("import os; print(os.environ['RANK'])", num_ranks=2)

        assert ended.exit_codes == {0: 0, 1: 0}
        assert ended.out[1].strip() == "1"

``launch.start(...)`` takes the same arguments and returns the running job, for tests
that signal a rank half-way; ``launch.torchrun(...)`` goes through ``torchrun``.

A file whose scripts import torch is marked ``usefixtures("fork_server")``: its ranks are
then forked from a process that has it imported, which saves seconds a rank.
"""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

SRC = Path(__file__).resolve().parents[2] / "src"
TICK_S = 0.02
TAIL_CHARS = 3000

# What a parent's own launch may have left in the environment must not reach the ranks.
# NCCL_* stays: a machine's owner sets it for a reason.
NOT_INHERITED = ("SLA_", "TORCHELASTIC_", "PL_", "ACCELERATE_", "SLURM_", "OMPI_", "PMI_")
NOT_INHERITED_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job all of whose processes have ended."""

    exit_codes: Mapping[int, int]
    """Exit code by rank, as ``subprocess`` gives it: minus the signal when killed by
    one. Under ``torchrun`` the only entry is that of the launcher, at rank -1."""

    out: Mapping[int, str]
    """Standard output by rank (-1: the launcher)."""

    err: Mapping[int, str]
    """Standard error by rank (-1: the launcher)."""

    seconds_s: Mapping[int, float]
    """Seconds from the start of the job to the end of each process."""

    def succeeded(self) -> bool:
        """Whether every process ended with 0."""
        return all(code == 0 for code in self.exit_codes.values())

    def __str__(self) -> str:
        return "\n".join(
            f"--- rank {rank}, exit {self.exit_codes.get(rank)}, {name}\n{text[-TAIL_CHARS:]}"
            for name, texts in (("stdout", self.out), ("stderr", self.err))
            for rank, text in sorted(texts.items())
            if text.strip()
        )


@dataclass(slots=True, kw_only=True)
class Job:
    """Running rank processes. Leaving the ``with`` block kills and reaps what is left."""

    folder: Path
    """Where script and logs lie."""

    port: int
    """The rendezvous port."""

    timeout_s: float
    """Seconds from the start after which everything is killed."""

    processes: dict[int, Any] = field(default_factory=dict)
    """Process by rank, a ``Popen`` or like one; each leads a process group of its own."""

    started_s: float = field(default_factory=time.monotonic)
    ended_s: dict[int, float] = field(default_factory=dict)

    def __enter__(self) -> "Job":  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def wait(self) -> Ended:
        """Waits until every process has ended.

        Raises:
            TimeoutError: If ``timeout_s`` passed first. Everything is killed, and the
                text shows the end of every log.
        """
        while not self._has_ended():
            if time.monotonic() - self.started_s > self.timeout_s:
                running = [r for r, process in self.processes.items() if process.poll() is None]
                self.kill()
                raise TimeoutError(
                    f"Ranks {running} still ran after {self.timeout_s} s:\n{self._ended()}"
                )
            time.sleep(TICK_S)
        return self._ended()

    def wait_for(self, text: str, *, rank: int = 0) -> None:
        """Waits until ``text`` stands in a rank's output.

        Raises:
            TimeoutError: If the rank ended or ``timeout_s`` passed first.
        """
        while text not in self.read(rank, "out") + self.read(rank, "err"):
            is_late = time.monotonic() - self.started_s > self.timeout_s
            if is_late or self.processes[rank].poll() is not None:
                self.kill()
                raise TimeoutError(f"Rank {rank} never said {text!r}:\n{self._ended()}")
            time.sleep(TICK_S)

    def seconds(self) -> float:
        """Seconds since the start of the job."""
        return time.monotonic() - self.started_s

    def read(self, rank: int, stream: str) -> str:
        """What a rank has written so far to ``out`` or ``err``."""
        path = self.folder / f"rank-{rank}.{stream}"
        return path.read_text(errors="replace") if path.exists() else ""

    def signal(self, rank: int, number: int) -> None:
        """Sends a signal to one rank's process, not to its children."""
        self.processes[rank].send_signal(number)

    def kill(self) -> None:
        """Ends every process that is left, with all of its process group, and reaps it."""
        for process in self.processes.values():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.processes.values():
            process.wait(timeout=10)

    def _has_ended(self) -> bool:
        for rank, process in self.processes.items():
            if process.poll() is not None:
                self.ended_s.setdefault(rank, time.monotonic() - self.started_s)
        return len(self.ended_s) == len(self.processes)

    def _ended(self) -> Ended:
        self._has_ended()
        ranks = {*self.processes, *self._ranks_with_logs()}
        return Ended(
            exit_codes={rank: process.poll() or 0 for rank, process in self.processes.items()},
            out={rank: self.read(rank, "out") for rank in ranks},
            err={rank: self.read(rank, "err") for rank in ranks},
            seconds_s=dict(self.ended_s),
        )

    def _ranks_with_logs(self) -> set[int]:
        """Collects the logs that ``torchrun`` kept of its ranks' last attempt."""
        ranks = set()
        for path in sorted(self.folder.glob("torchrun/**/std*.log")):
            stream = path.name.removeprefix("std").removesuffix(".log")
            rank = int(path.parent.name)
            (self.folder / f"rank-{rank}.{stream}").write_bytes(path.read_bytes())
            ranks.add(rank)
        return ranks


@dataclass(slots=True, kw_only=True)
class Launch:
    """What the fixture ``launch`` gives: starts jobs, and ends them all in the end."""

    folder: Path
    jobs: list[Job] = field(default_factory=list)
    fork: Any = None
    """Forks a rank instead of starting an interpreter for it; None for none."""

    def __call__(
        self,
        script: str | Path,
        *,
        num_ranks: int = 2,
        absent: Sequence[int] = (),
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        env_of: Mapping[int, Mapping[str, str]] | None = None,
        timeout_s: float = 60.0,
    ) -> Ended:
        """Runs a script on ``num_ranks`` real processes until all have ended.

        Args:
            script: A file (``Path``), or the source text itself (``str``).
            num_ranks: The world size the ranks are told.
            absent: Ranks that are not started at all.
            args: Command line arguments of the script.
            env: Environment variables for every rank.
            env_of: Environment variables for single ranks, by rank.
            timeout_s: Seconds after which everything is killed.

        Returns:
            Exit codes, outputs and durations by rank.

        Raises:
            TimeoutError: If a process still ran after ``timeout_s``.
        """
        job = self.start(
            script,
            num_ranks=num_ranks,
            absent=absent,
            args=args,
            env=env,
            env_of=env_of,
            timeout_s=timeout_s,
        )
        with job:
            return job.wait()

    def start(
        self,
        script: str | Path,
        *,
        num_ranks: int = 2,
        absent: Sequence[int] = (),
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        env_of: Mapping[int, Mapping[str, str]] | None = None,
        timeout_s: float = 60.0,
    ) -> Job:
        """Starts the ranks and returns at once; arguments as in :meth:`__call__`."""
        job = self._new_job(timeout_s)
        path = _file_of(script, job.folder)
        for rank in set(range(num_ranks)) - set(absent):
            own = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_ranks),
                "LOCAL_WORLD_SIZE": str(num_ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(job.port),
                **(env or {}),
                **(env_of or {}).get(rank, {}),
            }
            words = [str(path), *args]
            if self.fork is None:
                _spawn(job, rank, words, own)
            else:
                place = {"environment": _environment() | own, "folder": job.folder}
                job.processes[rank] = self.fork(rank=rank, words=words, **place)
        return job

    def torchrun(
        self,
        script: str | Path,
        *,
        num_ranks: int = 2,
        max_restarts: int = 0,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float = 90.0,
    ) -> Ended:
        """The same through ``torchrun``; the launcher is rank -1 of the result."""
        job = self._new_job(timeout_s)
        path = _file_of(script, job.folder)
        # With a static address the store, and gloo's addresses in it, outlive a restart.
        static = ["--master-addr", "127.0.0.1", "--master-port", str(job.port)]
        command = [
            *("-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)),
            *(["--standalone"] if max_restarts else static),
            *("--max-restarts", str(max_restarts), "--redirects", "3"),
            *("--log-dir", str(job.folder / "torchrun"), str(path), *args),
        ]
        _spawn(job, -1, command, dict(env or {}))
        with job:
            return job.wait()

    def command(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 90.0,
    ) -> Ended:
        """Runs Python with these words, some other launcher's; it is rank -1 of the result."""
        job = self._new_job(timeout_s)
        _spawn(job, -1, words, {"MASTER_PORT": str(job.port), **(env or {})})
        with job:
            return job.wait()

    def close(self) -> None:
        """Ends whatever a test left running."""
        for job in self.jobs:
            job.kill()

    def _new_job(self, timeout_s: float) -> Job:
        folder = self.folder / f"job-{len(self.jobs)}"
        folder.mkdir()
        job = Job(folder=folder, port=free_port(), timeout_s=timeout_s)
        self.jobs.append(job)
        return job


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _file_of(script: str | Path, folder: Path) -> Path:
    if isinstance(script, Path):
        return script
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    return path


def _spawn(job: Job, rank: int, arguments: Sequence[str], own: Mapping[str, str]) -> None:
    with (
        (job.folder / f"rank-{rank}.out").open("wb") as out,
        (job.folder / f"rank-{rank}.err").open("wb") as err,
    ):
        job.processes[rank] = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=_environment() | dict(own),
            cwd=job.folder,
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(NOT_INHERITED) and name not in NOT_INHERITED_NAMES
    }
    paths = [str(SRC), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        # Loopback whatever the host's name resolves to: tests stay on one machine.
        "GLOO_SOCKET_IFNAME": "lo",
    }
