"""Forks rank processes from one process that has the hosts imported already.

Importing torch and Lightning takes seconds, forking takes milliseconds; a suite of
dozens of small jobs is only affordable this way. The ranks are processes like any
other: own memory, own process group, own standard streams, a normal end.

Reads one order a line from standard input, as JSON: ``path``, ``args``, ``env``,
``folder``, ``rank``. Answers ``{"rank", "pid"}`` when the rank is forked and
``{"pid", "status"}`` when it has ended. Ends with its standard input.
"""

import atexit
import gc
import importlib
import importlib.util
import json
import os
import runpy
import selectors
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

STDIN, STDOUT, STDERR = 0, 1, 2


def main() -> None:
    """Serves; in a forked rank, runs the script it was forked for."""
    for name in ("lightning.pytorch", "sla_lightning", "accelerate", "sla_accelerate.accelerator"):
        importlib.import_module(name)
    if importlib.util.find_spec("deepspeed"):
        # Accelerate imports it in the middle of a step, which takes seconds.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        importlib.import_module("deepspeed")
    if importlib.util.find_spec("transformers"):
        importlib.import_module("sla_accelerate._trainer.watch")
    # Objects that no collection touches stay shared with the forks.
    gc.freeze()
    answer(ready=True)
    order = serve()
    if order is not None:
        become_rank(order)
        end_rank(run_script(order["path"]))


def run_script(path: str) -> int:
    """Runs a script as the interpreter would; returns the exit code."""
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def end_rank(code: int) -> None:
    """Ends as the interpreter does, but leaves the memory to the kernel.

    Taking modules of this size apart, in memory that is shared with the server, takes
    longer than most of the trainings.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> dict[str, Any] | None:
    """Forks a rank for each order; returns the order in the fork, None at the end."""
    selector = selectors.DefaultSelector()
    selector.register(STDIN, selectors.EVENT_READ, 0)
    unread = b""
    while True:
        for key, _ in selector.select():
            if key.data:
                selector.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(key.data, 0)
                answer(pid=key.data, status=os.waitstatus_to_exitcode(status))
                continue
            read = os.read(STDIN, 1 << 16)
            if not read:
                end_ranks([key.data for key in selector.get_map().values() if key.data])
                return None
            *lines, unread = (unread + read).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    for other in selector.get_map().values():
                        os.close(other.fd)
                    selector.close()
                    return order
                answer(rank=order["rank"], pid=pid)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)


def become_rank(order: dict[str, Any]) -> None:
    """Takes on the environment, the streams and the command line of a rank."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(order["folder"])
    streams = {STDIN: Path(os.devnull)}
    streams |= {STDOUT: folder / f"rank-{order['rank']}.out"}
    streams |= {STDERR: folder / f"rank-{order['rank']}.err"}
    for number, path in streams.items():
        mode = os.O_RDONLY if number == STDIN else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(path, mode, 0o644)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(folder)
    sys.argv = [order["path"], *order["args"]]
    sys.path[0] = str(Path(order["path"]).parent)
    sys.path[1:1] = filter(None, order["env"].get("PYTHONPATH", "").split(os.pathsep))
    sys.stdout.reconfigure(line_buffering=True)


def end_ranks(pids: list[int]) -> None:
    """Kills what is left when nobody waits for it any more."""
    for pid in pids:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def answer(**words: Any) -> None:
    """Writes one line to whoever gives the orders."""
    os.write(STDOUT, json.dumps(words).encode() + b"\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
