"""What a fault does to its own process: slow it, hold it, end it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from slav1.testing.fault import Fault

Effect: TypeAlias = Callable[[Fault, int, int, float], None]
"""Takes the fault, the rank, the step, and the rank's own usual time for the part."""

PAUSE_S = 0.05
MUTEX_BYTES = 64
"""More than a ``pthread_mutex_t`` takes on any Linux."""


class InjectedFaultError(RuntimeError):
    """The exception that an injected fault of kind ``exception`` raises.

    Attributes:
        rank: Global rank it was raised on.
        step: Step it was raised in.
        where: Point of the step.
    """

    def __init__(self, *, rank: int, step: int, where: str) -> None:
        super().__init__(
            f"Fault injection raised this on rank {rank}, step {step}, on entering {where}."
        )
        self.rank = rank
        self.step = step
        self.where = where


def _sleep(fault: Fault, rank: int, step: int, own_time_s: float) -> None:
    if fault.factor is not None:
        time.sleep((fault.factor - 1) * own_time_s)
    elif fault.seconds is not None:
        time.sleep(fault.seconds)


def _hang(fault: Fault, rank: int, step: int, own_time_s: float) -> None:
    end_s = _end_s(fault)
    while time.monotonic() < end_s:
        time.sleep(PAUSE_S)


def _hang_gil(fault: Fault, rank: int, step: int, own_time_s: float) -> None:
    # PyDLL, unlike CDLL, keeps the GIL during the call: no other thread runs Python.
    library = ctypes.PyDLL(None)
    end_s = _end_s(fault)
    if fault.seconds is None:
        # All zeros is an unlocked mutex. The second lock waits for ever, and unlike a
        # sleep it does not come back to Python after a signal either.
        mutex = ctypes.create_string_buffer(MUTEX_BYTES)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)
    while (left_s := end_s - time.monotonic()) > 0:
        library.usleep(min(999_999, int(left_s * 1e6)))


def _busy(fault: Fault, rank: int, step: int, own_time_s: float) -> None:
    end_s = _end_s(fault)
    while time.monotonic() < end_s:
        pass


def _kill(fault: Fault, rank: int, step: int, own_time_s: float) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(fault: Fault, rank: int, step: int, own_time_s: float) -> None:
    if fault.seconds is None:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    # A stopped process can't wake itself.
    command = f"sleep {fault.seconds}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL):
        os.kill(os.getpid(), signal.SIGSTOP)


def _exit(fault: Fault, rank: int, step: int, own_time_s: float) -> None:
    os._exit(fault.code)


def _raise(fault: Fault, rank: int, step: int, own_time_s: float) -> None:
    raise InjectedFaultError(rank=rank, step=step, where=fault.where)


def _end_s(fault: Fault) -> float:
    return float("inf") if fault.seconds is None else time.monotonic() + fault.seconds


EFFECTS: Mapping[str, Effect] = {
    "sleep": _sleep,
    "straggler": _sleep,
    "hang": _hang,
    "hang_gil": _hang_gil,
    "busy": _busy,
    "kill": _kill,
    "stop": _stop,
    "exit": _exit,
    "exception": _raise,
}
"""Side effect by kind of fault."""
