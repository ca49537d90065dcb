"""Signals that mean "stop", noted instead of raised wherever we are just then."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """Which signal that means "stop" came first."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal; None if none came."""

    def note(self, number: int, _: FrameType | None) -> None:
        """Handles a signal by remembering it."""
        self.number = self.number or number


@contextlib.contextmanager
def noted_interrupts() -> Iterator[Interrupts]:
    """Notes SIGINT, SIGTERM and SIGHUP while it is open; belongs into the main thread.

    A job that was started is thereby always known to the code that ends it: no signal
    comes between the two.
    """
    interrupts = Interrupts()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupts.note) for number in numbers}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            # None stands for a handler that was not set from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
