"""The encrypted star: one ROUTER at the coordinator, one DEALER a node.

CurveZMQ keys are made for each job. A caller that does not know the coordinator's
public key can't even begin; one that does, but is not of this job, is turned away
by its own key. Both are counted.
"""

import contextlib
from typing import NamedTuple

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from slav1.coordinator import messages

_FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_LINGER_MS = 500


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


class Listener:
    """The coordinator's end."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, peer: str) -> None:
        """Prepares the socket.

        Args:
            context: ZeroMQ context of this process.
            keys: Keys of the coordinator.
            peer: Public key that the monitors of this job show.
        """
        self.num_strangers = 0
        """Connections turned away."""
        self._peer = peer
        self.gatekeeper = context.socket(zmq.REP)
        self.gatekeeper.bind("inproc://zeromq.zap.01")
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = _LINGER_MS
        self.socket.curve_server = True
        self.socket.curve_publickey = keys.public.encode()
        self.socket.curve_secretkey = keys.secret.encode()
        self.socket.zap_domain = b"slav1"
        self.socket.handshake_ivl = 5000
        # What a stranger could make us keep in memory before it is turned away.
        self.socket.maxmsgsize = 64 << 20
        self.events = self.socket.get_monitor_socket(_FAILED_HANDSHAKES)

    def open(self, host: str, port: int) -> str:
        """Starts to listen; port 0 takes any free one. Returns the ZeroMQ address.

        Raises:
            PortInUseError: If the port is taken.
        """
        try:
            self.socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                raise PortInUseError(host, port) from error
            raise
        endpoint: bytes = self.socket.getsockopt(zmq.LAST_ENDPOINT)
        return endpoint.decode().rstrip("\0")

    def admit(self) -> None:
        """Answers whoever asks to come in, by the key it shows."""
        frames = self.gatekeeper.recv_multipart()
        version, request, mechanism = frames[0], frames[1], frames[5]
        key = z85.encode(frames[6]).decode() if mechanism == b"CURVE" else ""
        is_ours = key == self._peer
        status, text = (b"200", b"OK") if is_ours else (b"400", b"Not of this job")
        self.gatekeeper.send_multipart([version, request, status, text, b"", b""])

    def count_strangers(self) -> int:
        """Counts the connections turned away since the last call."""
        num_new = 0
        with contextlib.suppress(zmq.Again):
            while True:
                parse_monitor_message(self.events.recv_multipart(zmq.NOBLOCK))
                num_new += 1
        self.num_strangers += num_new
        return num_new

    def receive(self) -> tuple[bytes, messages.FromNode]:
        """Reads one message; returns the sender's identity and the message."""
        identity, raw = self.socket.recv_multipart()
        return identity, messages.decode_from_node(raw)

    def send(self, identity: bytes, message: messages.FromCoordinator) -> None:
        """Sends one message to one node; a node that is gone loses it."""
        self.socket.send_multipart([identity, messages.encode(message)], zmq.NOBLOCK)

    def close(self) -> None:
        """Closes all sockets; what was sent still goes out for half a second."""
        self.socket.disable_monitor()
        self.gatekeeper.close()
        self.socket.close()


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
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = _LINGER_MS
        self.socket.setsockopt(zmq.IDENTITY, f"node-{node}".encode())
        self.socket.curve_serverkey = server.encode()
        self.socket.curve_publickey = keys.public.encode()
        self.socket.curve_secretkey = keys.secret.encode()
        self.socket.connect(address)

    def receive(self) -> messages.FromCoordinator:
        """Reads one message."""
        return messages.decode_from_coordinator(self.socket.recv())

    def send(self, message: messages.FromNode) -> None:
        """Sends one message."""
        self.socket.send(messages.encode(message))

    def close(self) -> None:
        """Closes the socket; what was sent still goes out for half a second."""
        self.socket.close()
