"""The encrypted star, at its middle: one ROUTER that all nodes call.

CurveZMQ keys are made for each job. A caller that does not know the coordinator's
public key can't even begin; one that does, but is not of this job, is turned away
by its own key. Both are counted.
"""

import errno
from typing import NamedTuple

import msgspec
import zmq
from zmq.utils import z85

from slav1.coordinator import messages
from slav1.coordinator.refusals import WATCHED, Refusals

LINGER_MS = 500
"""How long a socket that is closed goes on sending, in milliseconds."""

_HANDSHAKE_MS = 5000
_MAX_EVENTS = 1000

FRAME_BYTES = 1 << 20
"""Longest frame, in bytes; a longer message goes out in several, all or none."""

IDENTITY = b"node-"
"""What a node is called by, before its number."""

MAX_BYTES = 4 << 20
"""Longest frame that is taken, in bytes: what a stranger can make us keep before it is
turned away."""


class KeyPair(NamedTuple):
    """CURVE keys as Z85 text."""

    public: str
    secret: str


def new_keys() -> KeyPair:
    """Makes a key pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


class PortInUseError(OSError):
    """The port that the contract names for the coordinator is taken."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"monitor.port {port} on {host} is taken by another process. Set monitor.port "
            "to a free port, or to 0 to let the coordinator choose one."
        )
        self.host = host
        self.port = port


class CannotListenError(OSError):
    """The coordinator can't open its port, for another reason than that it is taken."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"The coordinator can't listen on {host}, monitor.port {port}: {reason}. Set "
            "monitor.port to a port from 1024 on that this user may open, or to 0."
        )
        self.host = host
        self.port = port


class MessageError(ValueError):
    """Something came in that is no message of ours."""


class Listener:
    """The coordinator's end."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, peer: str) -> None:
        """Prepares the socket.

        Args:
            context: ZeroMQ context of this process.
            keys: Keys of the coordinator.
            peer: Public key that the monitors of this job show.
        """
        self._peer = peer
        self.gatekeeper = context.socket(zmq.REP)
        self.gatekeeper.bind("inproc://zeromq.zap.01")
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = LINGER_MS
        self.socket.backlog = 1024
        # A node that connects again is heard, though its old connection is not known to be dead.
        self.socket.router_handover = True
        self.socket.curve_server = True
        self.socket.curve_publickey = keys.public.encode()
        self.socket.curve_secretkey = keys.secret.encode()
        self.socket.zap_domain = b"slav1"
        self.socket.handshake_ivl = _HANDSHAKE_MS
        self.socket.maxmsgsize = MAX_BYTES
        self.events = self.socket.get_monitor_socket(WATCHED)
        self._refusals = Refusals()

    def open(self, host: str, port: int) -> str:
        """Starts to listen; port 0 takes any free one. Returns the ZeroMQ address.

        Raises:
            PortInUseError: If the port is taken.
            CannotListenError: If it can't be opened for another reason.
        """
        self.socket.ipv6 = ":" in host
        try:
            self.socket.bind(f"tcp://{bracketed(host)}:{port or '*'}")
        except zmq.ZMQError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(host, port) from error
            raise CannotListenError(host, port, str(error)) from error
        endpoint = self.socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes), "the option is bytes by its definition"
        return endpoint.decode().rstrip("\0")

    def admit(self) -> None:
        """Answers whoever asks to come in, by the key it shows."""
        try:
            frames = self.gatekeeper.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        version, request, mechanism = frames[0], frames[1], frames[5]
        key = z85.encode(frames[6]).decode() if mechanism == b"CURVE" else ""
        is_ours = key == self._peer
        status, text = (b"200", b"OK") if is_ours else (b"400", b"Not of this job")
        self.gatekeeper.send_multipart([version, request, status, text, b"", b""])

    def count_strangers(self) -> int:
        """Counts the connections turned away since the last call."""
        num_new = 0
        for _ in range(_MAX_EVENTS):
            try:
                frames = self.events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            num_new += self._refusals.add(frames[0])
        return num_new

    def receive(self) -> tuple[int, messages.FromNode] | None:
        """Reads one message.

        Returns:
            The node it comes from, and the message; None if none is there.

        Raises:
            MessageError: If it is no message of ours; it is gone then.
        """
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        try:
            node = int(frames[0].removeprefix(IDENTITY))
            return node, messages.decode_from_node(b"".join(frames[1:]))
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise MessageError(
                f"a message of node {frames[0]!r:.40} can't be read: {error}"
            ) from error

    def send(self, node: int, message: messages.FromCoordinator) -> None:
        """Sends one message to one node; a node that is gone loses it."""
        frames = [b"%s%d" % (IDENTITY, node), *in_frames(messages.encode(message))]
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            # A node that takes nothing is noticed by its silence.
            return

    def close(self) -> None:
        """Closes all sockets; what was sent still goes out for half a second."""
        self.socket.disable_monitor()
        self.events.close(linger=0)
        self.gatekeeper.close()
        self.socket.close()


def in_frames(raw: bytes) -> list[bytes]:
    """Cuts an encoded message into the frames that it is sent in."""
    return [raw[at : at + FRAME_BYTES] for at in range(0, len(raw), FRAME_BYTES)]


def bracketed(host: str) -> str:
    """A host as it stands in an address: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
