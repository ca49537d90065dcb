"""Runs the command line, inside this process or as one of its own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from slav1.cli import run


class Result(NamedTuple):
    """What a command left."""

    status: int
    out: str
    err: str


@pytest.fixture
def sla(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs ``sla`` with some words inside this process."""

    def run_command(*words: object) -> Result:
        status = run([str(word) for word in words])
        return Result(status, *capsys.readouterr())

    return run_command


@pytest.fixture
def start_sla() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts ``sla`` as a process with input and both outputs piped."""
    started = []

    def start(*words: object, before: str = "") -> "subprocess.Popen[str]":
        code = f"{before}\nfrom slav1.cli import main\nmain()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(timeout=30)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
