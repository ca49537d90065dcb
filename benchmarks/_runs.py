"""Running a job under faults and reading what its ledger says."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slav1.ledger import Entry, read_ledger

JOB = Path(__file__).with_name("_job.py")
_INJECTED = re.compile(r"Rank (\d+), step (\d+): injecting (\S+) \(time_ns=(\d+)\)")


@dataclass(frozen=True, kw_only=True)
class Injected:
    """One fault as the injector announced it."""

    rank: int
    step: int
    fault: str
    time_ns: int

    @property
    def kind(self) -> str:
        return self.fault.split(":", 1)[0]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a job left."""

    status: int
    entries: list[Entry]
    injected: list[Injected]
    output: str


def _whole_ledger(runs: Path) -> list[Entry]:
    """Reads the ledger once its last line is there: the monitor outlives the ranks."""
    deadline_s = time.monotonic() + 20
    while True:
        ledgers = sorted(runs.glob("*/ledger.jsonl"))
        entries = read_ledger(ledgers[-1]) if ledgers else []
        has_ended = any(entry.kind == "end" for entry in entries)
        if has_ended or not ledgers or time.monotonic() > deadline_s:
            return entries
        time.sleep(0.05)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="sla-bench-") as folder:
        yield Path(folder)


def run_job(
    *,
    faults: str = "",
    limit_s: float,
    override: dict[str, object] | None = None,
    **options: float | str,
) -> Run:
    """Runs ``_job.py`` to its end; all its processes are ended after ``limit_s`` seconds."""
    with scratch() as folder:
        log = folder / "output.txt"
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        command = [sys.executable, str(JOB), *flags, f"--run-dir={folder}/runs"]
        command.append(f"--override={json.dumps(override or {})}")
        environment = {**os.environ, "SLA_INJECT": faults, "OMP_NUM_THREADS": "1"}
        if not faults:
            del environment["SLA_INJECT"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                status = process.wait()
        text = log.read_text(errors="replace")
        entries = _whole_ledger(folder / "runs")
        injected = [
            Injected(rank=int(r), step=int(s), fault=f, time_ns=int(t))
            for r, s, f, t in _INJECTED.findall(text)
        ]
        return Run(status=status, entries=entries, injected=injected, output=text)
