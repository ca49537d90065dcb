"""What tests of bad days share: starting ranks without torch, finding their monitors."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from slav1.ledger import Entry, read_ledger

HERE = Path(__file__).resolve().parent
SRC = HERE.parents[1] / "src"
WAIT_S = 20.0

FINISH = """
from _trainee import *
session = join_run()
say("joined")
say("stopped at", train(session, num_steps={num_steps}, step_s={step_s}))
session.leave("finished")
say("left")
"""


UNTIL_GO = """
from _trainee import *
session = join_run()
say("joined")
say("stopped at", train_until(session, "go"))
session.leave("finished")
say("left")
"""
"""Trains until the test calls :func:`go`."""


def go(job: Any) -> Any:
    """Lets a job of ``UNTIL_GO`` finish; returns how it ended."""
    (job.folder / "go").touch()
    return job.wait()


def finish(num_steps: int = 50, step_s: float = 0.02) -> str:
    """A script that trains to its end."""
    return FINISH.format(num_steps=num_steps, step_s=step_s)


def start(
    launch: Any,
    script: str,
    run_dir: Path,
    *,
    num_ranks: int = 1,
    contract: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    **others: Any,
) -> Any:
    """Starts ranks that can import ``_trainee``; returns the running job."""
    own = {
        "PYTHONPATH": os.pathsep.join([str(SRC), str(HERE)]),
        "TEST_RUN_DIR": str(run_dir),
        "TEST_CONTRACT": json.dumps(contract or {}),
        "SLA_RUN_ID": "run",
    }
    return launch.start(
        script, num_ranks=num_ranks, env={**own, **(env or {})}, timeout_s=timeout_s, **others
    )


def monitors_of(job: Any) -> list[psutil.Process]:
    """Monitor processes that the job's ranks have started and that live."""
    found = []
    for process in job.processes.values():
        try:
            children = psutil.Process(process.pid).children()
        except psutil.NoSuchProcess:
            continue
        found += [child for child in children if is_monitor(child)]
    return found


def is_monitor(process: psutil.Process) -> bool:
    """Whether a process is a monitor of ours."""
    try:
        return "slav1.monitor" in process.cmdline() and process.status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def the_monitor(job: Any) -> psutil.Process:
    """The one monitor of a job, once it is there."""
    until(lambda: len(monitors_of(job)) == 1, "one monitor")
    return monitors_of(job)[0]


def until(holds: Callable[[], Any], what: str, limit_s: float = WAIT_S) -> None:
    """Waits until something holds; fails, never hangs."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, f"waited {limit_s} s in vain for: {what}"
        time.sleep(0.02)


def ledger(run_dir: Path, run_id: str = "run") -> list[Entry]:
    """The ledger of a run; nothing if there is none yet."""
    path = run_dir / run_id / "ledger.jsonl"
    return read_ledger(path) if path.exists() else []


def messages(entries: Sequence[Entry], kind: str) -> list[str]:
    """What the lines of one kind say."""
    return [entry.message or "" for entry in entries if entry.kind == kind]


def said(ended: Any, rank: int = 0) -> list[str]:
    """What was told to people on a rank's standard error, its monitor's words included."""
    return [line for line in ended.err[rank].splitlines() if line.startswith("[sla]")]
