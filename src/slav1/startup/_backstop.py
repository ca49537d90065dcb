"""Ends the process from C when no Python thread can act any more."""

from __future__ import annotations

import faulthandler
import threading
import time

STDERR = 2

_lock = threading.Lock()
_deadlines_s: dict[int, float] = {}


def hold(owner: int, deadline_s: float) -> None:
    """Makes sure the process ends after a deadline, with the stacks of all threads.

    The timer is faulthandler's: a thread in C that needs no GIL. A process has only one,
    so all guards share it, and a timer that somebody else set with
    ``faulthandler.dump_traceback_later`` is replaced. The exit code is 1, which
    faulthandler does not let one choose.

    Args:
        owner: Tells the guards apart.
        deadline_s: On the monotonic clock, in seconds.
    """
    with _lock:
        _deadlines_s[owner] = deadline_s
        _set()


def release(owner: int) -> None:
    """Takes a deadline back."""
    with _lock:
        if _deadlines_s.pop(owner, None) is not None:
            _set()


def _set() -> None:
    if not _deadlines_s:
        faulthandler.cancel_dump_traceback_later()
        return
    left_s = max(0.001, min(_deadlines_s.values()) - time.monotonic())
    # The descriptor, not sys.stderr: that may be replaced by something without one.
    faulthandler.dump_traceback_later(left_s, exit=True, file=STDERR)
