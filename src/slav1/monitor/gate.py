"""The node's local socket: ranks of this user and this run come in, nobody else."""

import array
import hmac
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable

import msgspec

from slav1.coordinator.transport import MessageError
from slav1.session import messages
from slav1.session.parts import MAX_WHOLE_BYTES, cut

_MAX_FDS = 2


class Gate:
    """Listens for the ranks of one node."""

    def __init__(self, token: str, node: int) -> None:
        """Opens the socket.

        Raises:
            OSError: If another monitor of this run and node is there already.
        """
        self._token = token.encode()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self.socket.bind(messages.gate_address(token, node))
        except OSError as error:
            self.socket.close()
            raise OSError(
                error.errno, f"a monitor of this run watches node {node} already"
            ) from error
        self.socket.listen(256)

    def accept(self) -> "Connection | None":
        """Takes the next caller.

        Returns:
            The caller; None if it is of another user, who is shut out.

        Raises:
            BlockingIOError: If nobody is there any more.
            OSError: If this process has no descriptor left for it.
        """
        caller, _ = self.socket.accept()
        pid, uid, _ = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, 12))
        if uid not in (os.getuid(), 0):
            caller.close()
            return None
        caller.setblocking(False)
        return Connection(caller, pid)

    def is_ours(self, hello: messages.Hello) -> bool:
        """Whether a caller knows this run's secret."""
        return hmac.compare_digest(hello.token.encode(), self._token)

    def close(self) -> None:
        """Closes the socket; its name vanishes with it."""
        self.socket.close()


def close_all(fds: Iterable[int]) -> None:
    """Closes descriptors that came with a message and that nobody wants."""
    for fd in fds:
        os.close(fd)


_SO_PEERCRED = getattr(socket, "SO_PEERCRED", 17)


class Connection:
    """One caller at the gate."""

    def __init__(self, caller: socket.socket, pid: int) -> None:
        self.socket = caller
        self.pid = pid
        """Its process id, as the kernel tells it to this process."""
        self._unsent: deque[bytes] = deque()
        self._num_unsent_bytes = 0
        self._num_sent = 0

    def receive(self) -> tuple[messages.FromRank | None, list[int]]:
        """Reads one message and the descriptors that came with it.

        Returns:
            The message and its descriptors; None and [] once the caller has hung up.

        Raises:
            MessageError: If it is no message of ours; its descriptors are closed.
            BlockingIOError: If nothing has come.
        """
        room = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
        try:
            # A program that the trainer starts must not inherit them from a monitor thread.
            raw, ancillary, _, _ = self.socket.recvmsg(
                messages.MAX_BYTES, room, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            return None, []
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        try:
            return (messages.decode_from_rank(raw) if raw else None), list(fds)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            close_all(fds)
            raise MessageError(f"a message of process {self.pid} can't be read: {error}") from error

    @property
    def is_sending(self) -> bool:
        """Whether something waits until the caller has read what came before it."""
        return bool(self._unsent)

    def send(self, message: messages.FromMonitor) -> None:
        """Sends one message, as far as the caller has room for it; :meth:`flush` the rest.

        A caller that is gone, or has not read for very long, loses it.
        """
        raw = messages.encode(message)
        if self._num_unsent_bytes + len(raw) > MAX_WHOLE_BYTES:
            return
        self._num_sent += 1
        pieces = list(cut(raw, self._num_sent))
        self._unsent.extend(pieces)
        self._num_unsent_bytes += sum(map(len, pieces))
        self.flush()

    def flush(self) -> None:
        """Sends what waits, as far as the caller has room for it."""
        while self._unsent:
            try:
                self.socket.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()
                self._num_unsent_bytes = 0
                return
            self._num_unsent_bytes -= len(self._unsent.popleft())

    def close(self) -> None:
        """Hangs up."""
        self.socket.close()
