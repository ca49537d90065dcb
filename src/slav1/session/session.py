"""One rank's side of a watched run: the recorder, the command word, the monitor's ear."""

import atexit
import contextlib
import faulthandler
import multiprocessing
import os
import select
import signal
import socket
import threading
from multiprocessing import util
from pathlib import Path
from time import monotonic_ns
from typing import Any

from slav1.decision import Action
from slav1.recorder import Block, Recorder
from slav1.recorder.command import CommandReader
from slav1.recorder.layout import Word
from slav1.session import messages
from slav1.session.dying import dying_of
from slav1.session.start_monitor import END_LIMIT_S, RunningMonitor

STACK_SIGNAL = int(signal.SIGURG)
"""Asks for stacks. Ignored by default, so a process that is not ready for it lives on."""

ANSWER_LIMIT_S = 3.0
"""How long an answer of the monitor is waited for, in seconds."""

FAILED_END_LIMIT_S = 1.0
"""How long a rank that failed waits for its monitor's last lines, in seconds: the other
ranks may be waiting for just this process to end."""

_IN_ORDER = ("finished", "exit")


class SessionError(RuntimeError):
    """This rank could not join its run."""


class Session:
    """What a host adapter holds while a run is watched. Used by one thread."""

    def __init__(self, *, rank: int, run_folder: Path, num_slots: int) -> None:
        """Starts to record; nobody watches yet.

        Args:
            rank: Global rank.
            run_folder: Folder of the run.
            num_slots: Steps the flight ring holds.
        """
        self.rank = rank
        self.run_folder = run_folder
        self._block = Block.create(rank=rank, num_slots=num_slots)
        self.recorder = Recorder(self._block)
        self._pid = os.getpid()
        self._socket: socket.socket | None = None
        self._stack_fd: int | None = None
        self._monitor: RunningMonitor | None = None
        self._is_open = True
        self.command = CommandReader(self._block.words, self.is_monitor_alive)
        atexit.register(self._leave_at_exit)
        if multiprocessing.parent_process() is not None:
            # A forked child of multiprocessing ends without the interpreter's exit hooks.
            util.Finalize(None, self._leave_at_exit, exitpriority=100)

    def connect(self, *, token: str, node: int, local_rank: int, limit_s: float) -> None:
        """Puts this rank under watch of its node's monitor.

        Raises:
            SessionError: If the monitor is not there or does not take this rank.
        """
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.settimeout(limit_s)
        _dial(caller, messages.gate_address(token, node), limit_s)
        self._socket = caller
        hello = messages.Hello(
            token=token,
            rank=self.rank,
            local_rank=local_rank,
            pid=self._pid,
            thread=threading.get_ident(),
            stack_signal=self._open_stack_file(),
        )
        fds = [self._block.fd, self._stack_fd or 0]
        socket.send_fds(caller, [messages.encode(hello)], fds)
        answer = self._hear()
        if not isinstance(answer, messages.Welcome):
            reason = answer.reason if isinstance(answer, messages.Refused) else "no answer"
            self._socket = None
            caller.close()
            raise SessionError(f"The monitor did not take rank {self.rank}: {reason}.")

    def own(self, monitor: RunningMonitor) -> None:
        """Takes over the monitor this process started; it is waited for at the end."""
        self._monitor = monitor

    def is_monitor_alive(self) -> bool:
        """Whether the monitor that watches this rank still runs."""
        if self._socket is None:
            return False
        poll = select.poll()
        poll.register(self._socket, 0)
        return not poll.poll(0)

    @property
    def is_ended_by_contract(self) -> bool:
        """Whether the contract is ending this process."""
        return self._is_open and self._block.words[Word.ENDED] != 0

    def at_boundary(self, step: int) -> Action | None:
        """Says what to do after ``step``; see :meth:`CommandReader.at_boundary`."""
        return self.command.at_boundary(step)

    def confirm(self, step: int) -> None:
        """Says that the action handed out at the end of ``step`` is being carried out."""
        words = self._block.words
        words[Word.CARRIED_OUT_STEP] = step
        words[Word.CARRIED_OUT_NS] = monotonic_ns()
        self.command.confirm()

    def note(self, message: str, *, step: int | None = None, **evidence: Any) -> None:
        """Writes a notice into the ledger."""
        self._say(messages.Note(message=message, step=step, evidence=evidence))

    def fail(self, error: BaseException, step: int | None) -> None:
        """Publishes an exception before anything is torn down."""
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        self._say(messages.Failure(error=text[:2000], step=step))

    def compare(self, *, num_batches: int | None) -> None:
        """Lets the coordinator compare what all ranks should have in common."""
        self._say(messages.Facts(num_batches=num_batches))

    def restore(self, state: Any) -> None:
        """Lets the detectors go on from the memories of :meth:`ask_state`."""
        self._say(messages.Restore(state=state))

    def ask_state(self) -> Any:
        """Returns the detector memories for a checkpoint; None if they can't be had."""
        if not self.is_monitor_alive():
            return None
        self._say(messages.AskState())
        answer = self._hear()
        return answer.state if isinstance(answer, messages.State) else None

    def leave(self, reason: str) -> None:
        """Says goodbye and lets go of everything; a second call does nothing.

        Args:
            reason: ``finished`` if training ended in good order.
        """
        if not self._is_open or os.getpid() != self._pid:
            return
        self._is_open = False
        atexit.unregister(self._leave_at_exit)
        self._say(messages.Goodbye(reason=reason))
        if self._socket is not None:
            self._hear()
            self._socket.close()
            self._socket = None
        else:
            with contextlib.suppress(OSError):
                self._block.save(self.run_folder / f"ring-{self.rank}.bin")
        if self._stack_fd is not None:
            faulthandler.unregister(STACK_SIGNAL)
            os.close(self._stack_fd)
        self._block.close()
        if self._monitor is not None:
            self._monitor.wait(END_LIMIT_S if reason in _IN_ORDER else FAILED_END_LIMIT_S)

    def _leave_at_exit(self) -> None:
        """The process ends and the host has not said why."""
        if not self._is_open or os.getpid() != self._pid:
            return
        error = dying_of()
        if error is None:
            self.leave("exit")
            return
        self.fail(error, None)
        self.leave(type(error).__name__)

    def _open_stack_file(self) -> int:
        self._stack_fd = os.memfd_create("slav1-stacks", os.MFD_CLOEXEC)
        faulthandler.register(STACK_SIGNAL, file=self._stack_fd, all_threads=True, chain=True)
        return STACK_SIGNAL

    def _say(self, message: messages.FromRank) -> None:
        if self._socket is None:
            return
        with contextlib.suppress(OSError):
            # A monitor that is gone is told to the user by whoever notices it first.
            self._socket.send(messages.encode(message))

    def _hear(self) -> messages.FromMonitor | None:
        """Reads one answer; None if none comes in time."""
        assert self._socket is not None
        self._socket.settimeout(ANSWER_LIMIT_S)
        try:
            raw = self._socket.recv(messages.MAX_BYTES)
        except OSError:
            return None
        return messages.decode_from_monitor(raw) if raw else None


def _dial(caller: socket.socket, address: str, limit_s: float) -> None:
    """Connects, trying again while the monitor of this node is still starting."""
    pause = threading.Event()
    deadline_ns = monotonic_ns() + int(limit_s * 1e9)
    while True:
        try:
            caller.connect(address)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            if monotonic_ns() > deadline_ns:
                caller.close()
                raise SessionError(
                    f"No monitor answered on this node within {limit_s:g} s. Local rank 0 starts "
                    "it; look at that rank's output."
                ) from error
            pause.wait(0.02)
        else:
            return
