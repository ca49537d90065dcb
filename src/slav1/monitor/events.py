"""Waiting for many sockets and descriptors at once, and surviving whatever they bring."""

import traceback
from collections.abc import Callable
from pathlib import Path

import zmq

MAX_FAILURES = 100
"""Failures in a row, without one success between, after which a monitor gives up."""


class Mishaps:
    """Runs what may fail, and tells of each kind of failure once.

    A message that nobody foresaw, or a mistake of ours about one rank, must not end the
    watch over all others. One that keeps coming back must: a monitor that can do nothing
    any more would stay for ever.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Starts with no failure.

        Args:
            tell: Told in one sentence, once for each place and type of failure.
        """
        self._tell = tell
        self._told: set[tuple[str, str, int]] = set()
        self._num_in_a_row = 0

    def run(self, what: Callable[[], None]) -> None:
        """Calls ``what``.

        Raises:
            Exception: What it raised, if nothing else has worked for long.
        """
        try:
            what()
        except Exception as error:
            self._num_in_a_row += 1
            if self._num_in_a_row >= MAX_FAILURES:
                raise
            self._tell_once(error)
        else:
            self._num_in_a_row = 0

    def _tell_once(self, error: Exception) -> None:
        place = traceback.extract_tb(error.__traceback__)[-1]
        key = (type(error).__name__, place.filename, place.lineno or 0)
        if key not in self._told:
            self._told.add(key)
            where = f"{Path(place.filename).name}:{place.lineno}"
            self._tell(f"The monitor goes on after a mishap: {key[0]} at {where}: {error}")


class Events:
    """Calls a function for each socket or descriptor that has something to read."""

    def __init__(self, mishaps: Mishaps) -> None:
        """Starts with nothing to watch."""
        self._mishaps = mishaps
        self._poller = zmq.Poller()
        self._on_ready: dict[object, Callable[[], None]] = {}

    def watch(self, what: object, on_ready: Callable[[], None]) -> None:
        """Calls ``on_ready`` whenever ``what``, a ZeroMQ socket or a descriptor, is readable."""
        self._on_ready[what] = on_ready
        self._poller.register(what, zmq.POLLIN)

    def unwatch(self, what: object) -> None:
        """Forgets ``what``; to be called before it is closed."""
        if self._on_ready.pop(what, None) is not None:
            self._poller.unregister(what)

    def wait(self, pause_s: float) -> None:
        """Waits until something is readable, but no longer than ``pause_s`` seconds."""
        # Rounded up: a pause of less than a millisecond would else be a busy loop.
        for ready, _ in self._poller.poll(max(0, -int(-pause_s * 1000 // 1))):
            on_ready = self._on_ready.get(ready)
            if on_ready is not None:
                self._mishaps.run(on_ready)
