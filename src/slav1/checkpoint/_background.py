"""A save that runs while training goes on."""

import threading
from collections.abc import Callable
from pathlib import Path

from slav1.checkpoint.errors import SaveFailedError
from slav1.checkpoint.facts import SaveFacts

HEAD_START_S = 0.002
"""How long a save waits for training to go on, in seconds: a thread that starts would
otherwise keep the interpreter for up to 5 ms."""


class Background:
    """At most one save in a thread of its own, and what became of those before."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._errors: list[SaveFailedError] = []

    @property
    def is_running(self) -> bool:
        """Whether a save runs now."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, save: Callable[[], object], path: Path, facts: SaveFacts) -> None:
        """Starts a save; the one before has to have ended."""
        assert not self.is_running

        def work() -> None:
            # Lets go of the interpreter, so that training goes on before this does.
            threading.Event().wait(HEAD_START_S)
            try:
                save()
            except SaveFailedError as error:
                self._errors.append(error)
            except BaseException as error:  # noqa: BLE001 - nothing may vanish with a thread
                reason = f"{type(error).__name__}: {error}"
                self._errors.append(SaveFailedError(path=path, step=facts.step, reason=reason))

        # A daemon: a process that wants to end is not held by a disk that hangs.
        self._thread = threading.Thread(target=work, name="slav1-checkpoint", daemon=True)
        self._thread.start()

    def wait(self, limit_s: float) -> bool:
        """Waits for the save that runs; False if it does not end in time."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(limit_s)
            return not self.is_running
        return True

    def raise_error(self) -> None:
        """Raises the oldest error that nobody has been told of."""
        if self._errors:
            raise self._errors.pop(0)
