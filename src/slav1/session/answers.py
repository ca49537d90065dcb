"""Answers of the monitor, each to the thread that asked."""

import contextlib
import select
import socket
import threading
from time import monotonic

import msgspec

from slav1.session import messages
from slav1.session.parts import Joiner, Part

UNNUMBERED = 0
"""Number of answers that only one asker at a time can mean, such as a farewell."""


class Answers:
    """Reads a socket on behalf of all threads that wait for an answer.

    There is no thread of its own: one of those that wait reads, and hands to the others
    what is theirs. What nobody waits for any more is dropped.
    """

    def __init__(self, connected: socket.socket) -> None:
        """Takes the socket over.

        Args:
            connected: Keeps messages whole; others may write to it meanwhile.
        """
        self._socket = connected
        self._changed = threading.Condition()
        self._expected: dict[int, messages.FromMonitor | None] = {}
        self._num_asked = UNNUMBERED
        self._joiner = Joiner()
        self._is_being_read = False
        self._is_closed = False
        self.has_ended = False
        """Whether nothing will be heard any more: hung up, by this end or the other."""

    def new_number(self) -> int:
        """Returns a number for a question, and keeps its answer until it is taken."""
        with self._changed:
            self._num_asked += 1
            self._expected[self._num_asked] = None
            return self._num_asked

    def expect(self, number: int) -> None:
        """Keeps the answer of this number, and forgets one that came before."""
        self._drain()
        with self._changed:
            self._expected[number] = None

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        with self._changed:
            self._expected.pop(number, None)

    def wait(self, number: int, limit_s: float) -> messages.FromMonitor | None:
        """Returns the answer of this number; None if none comes in time or ever."""
        deadline_s = monotonic() + limit_s
        while True:
            left_s = deadline_s - monotonic()
            with self._changed:
                answer = self._expected.get(number)
                if answer is not None or self.has_ended or left_s <= 0:
                    return answer
                if self._is_being_read:
                    self._changed.wait(left_s)
                    continue
                self._is_being_read = True
            try:
                raw = self._read(left_s)
            except BaseException:
                self._stop_reading()
                raise
            self._stop_reading(raw)

    def close(self) -> None:
        """Hangs up; whoever waits gets no answer."""
        with self._changed:
            self.has_ended = self._is_closed = True
            with contextlib.suppress(OSError):
                # Wakes the reader. Its descriptor must not be another file's meanwhile.
                self._socket.shutdown(socket.SHUT_RDWR)
            if not self._is_being_read:
                self._socket.close()
            self._changed.notify_all()

    def _drain(self) -> None:
        """Takes in what has come: what nobody waits for is dropped."""
        with self._changed:
            if self._is_being_read or self.has_ended:
                return
            while (raw := self._read(0.0)) is not None and not self.has_ended:
                self._hand_out(raw)

    def _read(self, limit_s: float) -> bytes | None:
        """Reads one message; None if none comes in time, nothing once the end is reached."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        try:
            if not poll.poll(max(0, -int(-limit_s * 1000 // 1))):
                return None
            return self._socket.recv(messages.MAX_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _stop_reading(self, raw: bytes | None = None) -> None:
        with self._changed:
            self._is_being_read = False
            if raw is not None:
                self._hand_out(raw)
            if self._is_closed:
                self._socket.close()
            self._changed.notify_all()

    def _hand_out(self, raw: bytes) -> None:
        if not raw:
            self.has_ended = True
            return
        try:
            message = messages.decode_from_monitor(raw)
            if isinstance(message, Part):
                whole = self._joiner.add(message)
                if whole is None:
                    return
                message = messages.decode_from_monitor(whole)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # What can't be read answers nobody; its asker stops waiting in time.
            return
        number = getattr(message, "number", UNNUMBERED)
        if number in self._expected:
            self._expected[number] = message
