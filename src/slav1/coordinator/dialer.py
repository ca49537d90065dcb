"""The encrypted star, at its points: one DEALER a node."""

import contextlib
from collections.abc import Sequence
from time import monotonic

import msgspec
import zmq

from slav1.coordinator import messages
from slav1.coordinator.transport import (
    IDENTITY,
    LINGER_MS,
    MAX_BYTES,
    KeyPair,
    MessageError,
    in_frames,
)

_OTHERS_S = 0.2


class UnreachableError(OSError):
    """The coordinator of the job does not answer this node."""

    def __init__(self, addresses: Sequence[str], limit_s: float) -> None:
        super().__init__(
            f"The coordinator beside rank 0 did not answer this node within {limit_s:g} s at "
            f"{' or '.join(addresses)}. Set MASTER_ADDR to a name or address of rank 0's host "
            "that all nodes reach, and let monitor.port (0: any) pass the firewall."
        )
        self.addresses = tuple(addresses)


class Dialer:
    """A node's end."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        node: int,
        address: str,
        keys: KeyPair,
        server: str,
    ) -> None:
        """Connects; ZeroMQ keeps trying until the coordinator answers.

        Args:
            context: ZeroMQ context of this process.
            node: Number of this node.
            address: What ``Listener.open`` returned.
            keys: Keys that the monitors of this job share.
            server: Public key of the coordinator.
        """
        self.socket = _dealer(context, address, keys, server)
        self.socket.setsockopt(zmq.IDENTITY, b"%s%d" % (IDENTITY, node))
        self.socket.connect(address)

    def receive(self) -> messages.FromCoordinator | None:
        """Reads one message; None if none is there.

        Raises:
            MessageError: If it is no message of ours; it is gone then.
        """
        try:
            raw = b"".join(self.socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return None
        try:
            return messages.decode_from_coordinator(raw)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise MessageError(f"a message of the coordinator can't be read: {error}") from error

    def send(self, message: messages.FromNode) -> None:
        """Sends one message. Never waits: whoever watches must not be held up."""
        # What nobody takes any more is lost: a coordinator that is gone misses nothing.
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart(in_frames(messages.encode(message)), zmq.NOBLOCK)

    def close(self) -> None:
        """Closes the socket; what was sent still goes out for half a second."""
        self.socket.close()


def reachable(
    context: zmq.Context[zmq.Socket[bytes]],
    addresses: Sequence[str],
    *,
    keys: KeyPair,
    server: str,
    limit_s: float,
) -> str:
    """Finds the address at which the coordinator of this very job answers.

    Args:
        context: ZeroMQ context of this process.
        addresses: ZeroMQ addresses to try, all at once.
        keys: Keys that the monitors of this job share.
        server: Public key of the coordinator.
        limit_s: How long to try, in seconds.

    Returns:
        The first that completed a handshake with these keys.

    Raises:
        UnreachableError: If none did.
    """
    sockets = {address: _dealer(context, address, keys, server) for address in addresses}
    poller = zmq.Poller()
    address_of = {}
    for address, dealer in sockets.items():
        events = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        address_of[events] = address
        poller.register(events, zmq.POLLIN)
        dealer.connect(address)
    try:
        ready = poller.poll(int(limit_s * 1000))
        if ready:
            _let_finish(poller, len(sockets))
    finally:
        for dealer in sockets.values():
            dealer.disable_monitor()
            dealer.close(linger=0)
        for events in address_of:
            events.close(linger=0)
    if not ready:
        raise UnreachableError(addresses, limit_s)
    return address_of[ready[0][0]]


def _let_finish(poller: zmq.Poller, num: int) -> None:
    """Waits a moment for the other handshakes: who hangs up in the middle of one looks like a
    stranger at the other end."""
    until_s = monotonic() + _OTHERS_S
    while (left_s := until_s - monotonic()) > 0.0:
        done = poller.poll(int(left_s * 1000))
        for events, _ in done:
            poller.unregister(events)
        num -= len(done)
        if not num:
            return


def _dealer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, keys: KeyPair, server: str
) -> "zmq.Socket[bytes]":
    """Makes a socket with the keys of the job; not connected yet."""
    dealer = context.socket(zmq.DEALER)
    dealer.linger = LINGER_MS
    dealer.maxmsgsize = MAX_BYTES
    # Names are looked up by ZeroMQ, which must be told to take addresses of both kinds.
    dealer.ipv6 = "127.0.0.1" not in address
    dealer.curve_serverkey = server.encode()
    dealer.curve_publickey = keys.public.encode()
    dealer.curve_secretkey = keys.secret.encode()
    return dealer
