"""Telling people, on the job's standard error, without ever waiting for them."""

import os
import select
import sys

_MAX_BYTES = 4000


def say(message: str) -> None:
    """Shows one line to whoever watches the job's standard error.

    A reader that is stuck (a full pipe, a stopped terminal) must not hold up whoever
    speaks: the line is left out then. What matters stands in the ledger as well.
    """
    text = f"[sla] {message}\n"
    try:
        fd = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        _print(text)
        return
    try:
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        if any(event & select.POLLOUT for _, event in poll.poll(0)):
            # A pipe that can be written to takes a page at once.
            os.write(fd, text.encode(errors="replace")[:_MAX_BYTES])
    except (OSError, ValueError):
        # Nobody reads it any more.
        return


def _print(text: str) -> None:
    """Standard error is no file, as in a notebook."""
    try:
        print(text, end="", file=sys.stderr, flush=True)  # noqa: T201 - there is no other way
    except (OSError, ValueError, AttributeError):
        return
