"""One rank's connection to its node's monitor."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Sequence
from time import monotonic_ns

from slav1.session import messages
from slav1.session.answers import UNNUMBERED, Answers
from slav1.session.parts import cut

ANSWER_LIMIT_S = 3.0
"""How long an answer of the monitor is waited for, in seconds."""

WELCOME_LIMIT_S = 10.0
"""How long a monitor may take to let a rank in, in seconds."""

MAX_TRIES = 6
"""How often a rank knocks at a monitor that hangs up on it without a word."""

TRY_AGAIN_S = 0.5
"""Pause before it does so again, in seconds."""

_PAUSE_S = 0.02


class SessionError(RuntimeError):
    """This rank could not join its run."""


class NoAnswerError(SessionError):
    """The monitor hung up on this rank, or said nothing."""


class MonitorLink:
    """Says and asks; never waits for long, and takes a monitor that is gone quietly.

    Used by several threads: a save in the background asks while training goes on.
    """

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
        self._answers = Answers(self._socket)
        # Reentrant: a signal handler may have something to say while its thread speaks.
        self._speaks = threading.RLock()
        self._num_said = 0

    def join(self, hello: messages.Hello, fds: Sequence[int]) -> None:
        """Introduces this rank.

        Raises:
            NoAnswerError: If the monitor hangs up, or says nothing in time.
            SessionError: If it does not take this rank, and says why.
        """
        self._answers.expect(UNNUMBERED)
        self._socket.settimeout(WELCOME_LIMIT_S)
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [messages.encode(hello)], fds)
        answer = self._answers.wait(UNNUMBERED, WELCOME_LIMIT_S)
        self._socket.settimeout(ANSWER_LIMIT_S)
        if not isinstance(answer, messages.Welcome):
            text = f"The monitor did not take rank {hello.rank}"
            if isinstance(answer, messages.Refused):
                raise SessionError(f"{text}: {answer.reason}.")
            raise NoAnswerError(f"{text}: it did not answer; perhaps the run has ended already.")

    def is_open(self) -> bool:
        """Whether the monitor's end is still there."""
        if self._answers.has_ended:
            return False
        poll = select.poll()
        try:
            poll.register(self._socket, 0)
        except ValueError:
            # Another thread hung up in this very moment.
            return False
        return not poll.poll(0)

    def say(self, message: messages.FromRank) -> None:
        """Says something; a monitor that is gone or stuck does not hear it."""
        raw = _encoded(message)
        with self._speaks, contextlib.suppress(OSError):
            self._num_said += 1
            for piece in cut(raw, self._num_said):
                self._socket.send(piece)

    def take_leave(self, goodbye: messages.Goodbye) -> None:
        """Says goodbye and waits until the monitor has taken it in."""
        self._answers.expect(UNNUMBERED)
        self.say(goodbye)
        self._answers.wait(UNNUMBERED, ANSWER_LIMIT_S)

    def answer_to(
        self, question: Callable[[int], messages.FromRank], limit_s: float = ANSWER_LIMIT_S
    ) -> messages.FromMonitor | None:
        """Asks once and returns the answer; None if none comes in time.

        Args:
            question: Makes the question of the number it must carry.
            limit_s: How long to wait, in seconds.
        """
        number = self.question()
        try:
            return self.ask(number, question(number), limit_s)
        finally:
            self.forget(number)

    def question(self) -> int:
        """Returns the number that a question must carry; :meth:`ask` it then."""
        return self._answers.new_number()

    def ask(
        self, number: int, question: messages.FromRank, limit_s: float = ANSWER_LIMIT_S
    ) -> messages.FromMonitor | None:
        """Says something and returns the answer; None if none comes in time.

        Args:
            number: What :meth:`question` returned; the question carries it. Asking again
                with the same number is no new question.
            question: What is said.
            limit_s: How long to wait, in seconds.
        """
        self.say(question)
        return self._answers.wait(number, limit_s)

    def forget(self, number: int) -> None:
        """The answer of this number was taken, or is not wanted any more."""
        self._answers.forget(number)

    def close(self) -> None:
        """Hangs up."""
        self._answers.close()


def join_monitor(
    address: str, hello: messages.Hello, fds: Sequence[int], limit_s: float
) -> MonitorLink:
    """Connects to a node's monitor and introduces this rank.

    Args:
        address: What ``messages.gate_address`` returned.
        hello: Who this rank is.
        fds: Descriptors that it brings.
        limit_s: How long to try to connect, in seconds.

    Raises:
        SessionError: If the monitor is not there or does not take this rank.
    """
    pause = threading.Event()
    for tries_left in reversed(range(MAX_TRIES)):
        link = MonitorLink(address, limit_s)
        try:
            link.join(hello, fds)
        except NoAnswerError:
            link.close()
            # One that a crowd left without descriptors can't take ours, and hangs up: there
            # is room again once it has turned the crowd away.
            if not tries_left:
                raise
        except BaseException:
            link.close()
            raise
        else:
            return link
        pause.wait(TRY_AGAIN_S)
    raise AssertionError("the last try returns or raises")


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
