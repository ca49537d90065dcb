"""One rank's connection to its node's monitor."""

import contextlib
import select
import socket
import threading
from collections.abc import Sequence
from time import monotonic_ns

import msgspec

from slav1.session import messages

ANSWER_LIMIT_S = 3.0
"""How long an answer of the monitor is waited for, in seconds."""

WELCOME_LIMIT_S = 10.0
"""How long a monitor may take to let a rank in, in seconds."""

_PAUSE_S = 0.02


class SessionError(RuntimeError):
    """This rank could not join its run."""


class MonitorLink:
    """Says and asks; never waits for long, and takes a monitor that is gone quietly."""

    def __init__(self, address: str, limit_s: float) -> None:
        """Connects, trying again while the monitor of this node is still starting.

        Args:
            address: What ``messages.gate_address`` returned.
            limit_s: How long to try, in seconds.

        Raises:
            SessionError: If no monitor is there in time.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(limit_s)
        try:
            _dial(self._socket, address, limit_s)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(ANSWER_LIMIT_S)

    def join(self, hello: messages.Hello, fds: Sequence[int]) -> None:
        """Introduces this rank.

        Raises:
            SessionError: If the monitor does not take it.
        """
        self._socket.settimeout(WELCOME_LIMIT_S)
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [messages.encode(hello)], fds)
        answer = self.hear()
        self._socket.settimeout(ANSWER_LIMIT_S)
        if not isinstance(answer, messages.Welcome):
            reason = "it did not answer; perhaps the run has ended already"
            if isinstance(answer, messages.Refused):
                reason = answer.reason
            raise SessionError(f"The monitor did not take rank {hello.rank}: {reason}.")

    def is_open(self) -> bool:
        """Whether the monitor's end is still there."""
        poll = select.poll()
        poll.register(self._socket, 0)
        return not poll.poll(0)

    def say(self, message: messages.FromRank) -> None:
        """Says something; a monitor that is gone or stuck does not hear it."""
        with contextlib.suppress(OSError):
            self._socket.send(_encoded(message))

    def ask(self, question: messages.FromRank) -> messages.FromMonitor | None:
        """Says something and returns the answer; None if none comes in time."""
        self._forget_late_answers()
        self.say(question)
        return self.hear()

    def hear(self) -> messages.FromMonitor | None:
        """Reads one answer; None if none comes in time."""
        try:
            raw = self._socket.recv(messages.MAX_BYTES)
            return messages.decode_from_monitor(raw) if raw else None
        except (OSError, msgspec.MsgspecError):
            return None

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _forget_late_answers(self) -> None:
        """What comes after its asker stopped waiting must not answer the next one."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        with contextlib.suppress(OSError):
            while poll.poll(0) and self._socket.recv(messages.MAX_BYTES):
                continue


def _dial(caller: socket.socket, address: str, limit_s: float) -> None:
    pause = threading.Event()
    deadline_ns = monotonic_ns() + int(limit_s * 1e9)
    while True:
        try:
            caller.connect(address)
        except (ConnectionRefusedError, FileNotFoundError, BlockingIOError) as error:
            if monotonic_ns() > deadline_ns:
                raise SessionError(
                    f"No monitor answered on this node within {limit_s:g} s. Local rank 0 starts "
                    "it, and it ends when all ranks that had joined have left; look at the "
                    "output of local rank 0."
                ) from error
            pause.wait(_PAUSE_S)
        except TimeoutError as error:
            raise SessionError(
                f"The monitor of this node took no connection within {limit_s:g} s: it is "
                "stopped or overloaded."
            ) from error
        else:
            return


def _encoded(message: messages.FromRank) -> bytes:
    """Encodes what a rank says; text that can't be sent must not raise into training."""
    try:
        return messages.encode(message)
    except (ValueError, OverflowError, TypeError) as error:
        return messages.encode(messages.Note(message=f"A message of this rank got lost: {error!a}"))
