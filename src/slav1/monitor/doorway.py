"""Callers at the gate who have not yet said who they are."""

import errno
import os
from collections.abc import Callable, Iterator

from slav1.coordinator.transport import MessageError
from slav1.monitor.gate import Connection, Gate, close_all
from slav1.session import messages

MAX_WAITING = 256
"""Callers that may be silent at the same time; one more drives out the oldest."""

SILENCE_LIMIT_S = 10.0
"""How long a caller may say nothing, in seconds."""

_MAX_AT_ONCE = 64
_ROOM = 8
"""Descriptors kept free for what a rank brings and for what watching it takes."""

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Doorway:
    """Keeps silent callers apart from ranks, and never for long. Time is passed in."""

    def __init__(self, gate: Gate, forget: Callable[[Connection], None]) -> None:
        """Starts with nobody waiting.

        Args:
            gate: Where callers come in.
            forget: Told of each caller just before it is hung up on.
        """
        self._gate = gate
        self._forget = forget
        self._waiting: dict[Connection, float] = {}
        self.num_turned_away = 0
        """Callers turned away since this was last set to 0."""

    def accept(self, now_s: float) -> Iterator[Connection]:
        """Lets callers in who stand outside, to be heard once they say something.

        Yields:
            Each of them; of a crowd only the first part.
        """
        for _ in range(_MAX_AT_ONCE):
            try:
                caller = self._gate.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                # No descriptor is left: those who say nothing have to make room.
                self.send_away_silent(float("inf"))
                return
            if caller is None:
                self.num_turned_away += 1
                continue
            if len(self._waiting) >= MAX_WAITING:
                self.turn_away(next(iter(self._waiting)))
            self._waiting[caller] = now_s
            self._keep_room()
            yield caller

    def _keep_room(self) -> None:
        """Drives the longest silent out until a rank's descriptors would still come in:
        the kernel drops those it has no room for without a word."""
        while len(self._waiting) > 1 and not _has_room(self._gate.socket.fileno()):
            self.turn_away(next(iter(self._waiting)))

    def hear(self, caller: Connection) -> tuple[messages.Hello, list[int]] | None:
        """Reads a caller's first message, which must be a hello that knows the secret.

        Returns:
            The hello and its two descriptors; None if the caller was turned away.
        """
        try:
            hello, fds = caller.receive()
        except BlockingIOError:
            return None
        except (MessageError, OSError):
            self.turn_away(caller)
            return None
        if isinstance(hello, messages.Hello) and self._gate.is_ours(hello) and len(fds) == 2:
            del self._waiting[caller]
            return hello, fds
        close_all(fds)
        self.turn_away(caller)
        return None

    def turn_away(self, caller: Connection) -> None:
        """Hangs up on a caller that is not of this run."""
        del self._waiting[caller]
        self.num_turned_away += 1
        self._forget(caller)
        caller.close()

    def send_away_silent(self, now_s: float) -> None:
        """Hangs up on those who have said nothing for too long."""
        for caller, since_s in list(self._waiting.items()):
            if now_s - since_s > SILENCE_LIMIT_S:
                self.turn_away(caller)

    def close(self) -> None:
        """Hangs up on everybody."""
        for caller in self._waiting:
            caller.close()
        self._waiting.clear()


def _has_room(fd: int) -> bool:
    """Whether this process may open ``_ROOM`` further descriptors."""
    copies: list[int] = []
    try:
        for _ in range(_ROOM):
            copies.append(os.dup(fd))  # noqa: PERF401 - what was opened is closed again
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        return False
    finally:
        close_all(copies)
    return True
