"""What all tests share: real ranks, and the promise that nothing of them stays behind."""

import ctypes
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 3.0
SHARED_MEMORY = Path("/dev/shm")


def _load(name: str) -> ModuleType:
    # Test folders are no packages (import mode importlib), so the file is loaded by path.
    path = Path(__file__).parent / "ranks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_launch, _forks = _load("_launch"), _load("_forks")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Gives a test of real processes a second try: a machine that stands still for a second is
    no defect of ours. The summary names each as RERUN; one that comes up again is a defect,
    and so is whatever a test leaves behind, at once.
    """
    for item in items:
        if item.get_closest_marker("ranks"):
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except="Left behind"))


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Any]:
    """The process that ranks are forked from; see ``tests/ranks/_fork_server.py``."""
    server = _forks.ForkServer(_launch._environment())
    yield server
    server.close()


@pytest.fixture
def launch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Runs scripts on real rank processes; see ``tests/ranks/_launch.py``."""
    folder = tmp_path / "launch"
    folder.mkdir()
    starter = _launch.Launch(folder=folder)
    if "fork_server" in request.fixturenames:
        starter.fork = partial(_forks.ForkedProcess, request.getfixturevalue("fork_server"))
    yield starter
    starter.close()


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test marked ``ranks`` that leaves a process, thread, socket or
    shared-memory file."""
    if request.node.get_closest_marker("ranks") is None:
        yield
        return
    # Orphans of the ranks come to us instead of to init: they can be seen and ended.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = _everything_open()
    yield
    left = _left_since(before)
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = _left_since(before)
    _end_processes(left)
    if left:
        pytest.fail("Left behind:\n" + "\n".join(sorted(left.values())))


def _everything_open() -> dict[Any, str]:
    """All that a test could leave, by something that tells it apart, with a description."""
    return {**_processes(), **_threads(), **_sockets(), **_shared_memory()}


def _left_since(before: dict[Any, str]) -> dict[Any, str]:
    left = {key: text for key, text in _everything_open().items() if key not in before}
    shared = [key for key in left if key[0] == "shared memory"]
    # Somebody else's test may run on this machine: a file that a stranger holds is his.
    for key in shared:
        if _is_held_by_a_stranger(key[1]):
            del left[key]
    return left


def _processes() -> dict[Any, str]:
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() == psutil.STATUS_ZOMBIE and child.ppid() == os.getpid():
                _reap_orphan(child.pid)
                continue
            text = f"process {child.pid}: {' '.join(child.cmdline())[:200]}"
        except psutil.NoSuchProcess:
            continue
        found["process", child.pid, child.create_time()] = text
    return found


def _reap_orphan(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _threads() -> dict[Any, str]:
    return {("thread", t.ident): f"thread {t.name}" for t in threading.enumerate()}


def _sockets() -> dict[Any, str]:
    found: dict[Any, str] = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found["socket", target] = f"descriptor {descriptor.name}: {target}"
    return found


def _shared_memory() -> dict[Any, str]:
    if not SHARED_MEMORY.exists():
        return {}
    return {("shared memory", str(p)): f"shared memory {p}" for p in SHARED_MEMORY.iterdir()}


def _is_held_by_a_stranger(path: str) -> bool:
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        try:
            if path in Path(f"/proc/{process.pid}/maps").read_text():
                return True
            if path in {file.path for file in process.open_files()}:
                return True
        except (OSError, psutil.Error):
            continue
    return False


def _end_processes(left: dict[Any, str]) -> None:
    for key in left:
        if key[0] == "process":
            try:
                os.kill(key[1], signal.SIGKILL)
            except ProcessLookupError:
                continue
    _processes()
