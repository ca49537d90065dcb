"""Counting connections that were refused, from what ZeroMQ tells about its sockets."""

import struct

import zmq

WATCHED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)
"""Events that :class:`Refusals` must be shown."""

_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
)
_EVENT = struct.Struct("=HI")


class Refusals:
    """Tells strangers who were turned away from nodes that left.

    A caller of an older ZeroMQ, or of another protocol that looks like one, is dropped
    without any event of failure: it shows only in that it was accepted and is gone.
    """

    def __init__(self) -> None:
        """Starts with nobody connected."""
        self._shaking: set[int] = set()
        self._admitted: set[int] = set()
        self._num_unassigned = 0
        self._num_failed = 0

    def add(self, raw: bytes) -> int:
        """Takes in one event, as the first frame of ZeroMQ's message about it.

        Returns:
            1 if a caller was refused, 0 otherwise.
        """
        event, descriptor = _EVENT.unpack(raw)
        if event == zmq.EVENT_ACCEPTED:
            self._shaking.add(descriptor)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            # It does not say whose. With several under way that shows later, if at all.
            self._num_unassigned += 1
            self._assign()
        elif event in _FAILED:
            self._num_failed += 1
            return 1
        elif event == zmq.EVENT_DISCONNECTED:
            return self._hang_up(descriptor)
        return 0

    def _assign(self) -> None:
        if len(self._shaking) <= self._num_unassigned:
            self._admitted |= self._shaking
            self._shaking.clear()
            self._num_unassigned = 0

    def _hang_up(self, descriptor: int) -> int:
        if descriptor in self._admitted:
            self._admitted.discard(descriptor)
            return 0
        self._shaking.discard(descriptor)
        if self._num_failed:
            # Its failure was counted already.
            self._num_failed -= 1
            self._assign()
            return 0
        if self._num_unassigned:
            # It came in and left, or another came in and it was dropped: nobody is accused.
            self._assign()
            return 0
        return 1
