"""Importing slav1 does nothing that a user would notice."""

import json
import subprocess
import sys
from typing import Any

import pytest

SEEN = """
import faulthandler, json, logging, os, signal, sys, threading, warnings

def seen():
    return {
        "threads": threading.active_count(),
        "handlers": [repr(h) for h in logging.root.handlers],
        "level": logging.root.level,
        "environment": dict(os.environ),
        "hooks": [sys.excepthook.__name__, threading.excepthook.__name__],
        "signals": {s.name: repr(signal.getsignal(s)) for s in signal.valid_signals()
                    if isinstance(s, signal.Signals)},
        "warnings": len(warnings.filters),
        "faulthandler": faulthandler.is_enabled(),
        "files": sorted(os.listdir("/proc/self/fd")),
        "folder": os.getcwd(),
    }
"""
HEAVY = (
    "torch",
    "torchmetrics",
    "lightning",
    "pytorch_lightning",
    "accelerate",
    "deepspeed",
    "pynvml",
    "numpy",
)


def run(code: str) -> Any:
    result = subprocess.run(
        [sys.executable, "-c", SEEN + code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.mark.slow
def test_imports_nothing_heavy() -> None:
    """
    `import slav1` imports no framework, no host and no driver library.
    """
    loaded = run("import slav1; print(json.dumps(list(sys.modules)))")

    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.slow
def test_changes_nothing_global() -> None:
    """
    `import slav1` starts no thread and leaves logging, warnings, signals, hooks, open
    files and the environment as they were.
    """
    code = "import logging; before = seen(); import slav1; print(json.dumps([before, seen()]))"

    before, after = run(code)

    assert after == before


@pytest.mark.slow
def test_can_be_imported_in_a_thread() -> None:
    """
    `import slav1` works outside the main thread, where signal handlers can't be set.
    """
    code = """
found = []
def work():
    import slav1
    found.append(slav1.__version__)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(json.dumps(found))
"""

    assert len(run(code)) == 1
