"""Which ranks of this machine are here, known without any store."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from collections.abc import Iterable

CREDENTIALS = struct.Struct("iII")
"""Process, user and group of a sender, as the kernel writes them (``struct ucred``)."""

LONGEST_BYTES = 64 << 10


class Presence:
    """Announces a rank to the others of its machine by the name of an open socket.

    A socket in Linux's abstract namespace has a name and no file: it vanishes with the
    process, however that ends, so nobody who died is taken for present. Ranks can send
    each other one short text; what another user sent is not read. Elsewhere than on
    Linux nobody is seen or heard.
    """

    def __init__(self, *, meeting: str, rank: int) -> None:
        """Announces ``rank`` among those who name the same ``meeting``."""
        self._meeting = hashlib.sha256(meeting.encode()).hexdigest()[:16]
        self._rank = rank
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.is_taken = False
        """Whether another process of this machine already announced the same rank."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind(self._name(rank))
        except OSError:
            self.is_taken = rank in self.seen(range(rank, rank + 1))

    def seen(self, ranks: Iterable[int]) -> frozenset[int]:
        """Those of ``ranks`` that are announced on this machine now."""
        return frozenset(rank for rank in ranks if self._reach(rank, None))

    def tell(self, ranks: Iterable[int], text: bytes) -> None:
        """Sends a text to each of ``ranks`` that is here; who is not here is left out."""
        for rank in ranks:
            if rank != self._rank:
                self._reach(rank, text)

    def heard(self) -> bytes | None:
        """A text that another rank sent and that was not read yet, if there is one."""
        try:
            text, notes, _, _ = self._socket.recvmsg(
                LONGEST_BYTES, socket.CMSG_SPACE(CREDENTIALS.size)
            )
        except OSError:
            return None
        for level, kind, content in notes:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                _, user, _ = CREDENTIALS.unpack(content[: CREDENTIALS.size])
                return text if user == os.getuid() else None
        return None

    def close(self) -> None:
        """Takes the announcement back."""
        self._socket.close()

    def _reach(self, rank: int, text: bytes | None) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self._name(rank))
                if text is not None:
                    probe.send(text)
            except OSError:
                return False
            return True

    def _name(self, rank: int) -> bytes:
        return f"\0slav1/{self._meeting}/{rank}".encode()
