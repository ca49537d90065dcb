"""The encrypted star, over real sockets on the loopback interface."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from slav1.coordinator import messages
from slav1.coordinator.dialer import Dialer, UnreachableError, reachable
from slav1.coordinator.transport import (
    MAX_BYTES,
    CannotListenError,
    KeyPair,
    Listener,
    MessageError,
    PortInUseError,
    bracketed,
    new_keys,
)

LIMIT_S = 5.0
HOST = "127.0.0.1"


class Star:
    """A listener and the nodes that call it."""

    def __init__(self, context: Any, host: str = HOST) -> None:
        self.context = context
        self.server, self.peers = new_keys(), new_keys()
        self.listener = Listener(context, self.server, self.peers.public)
        self.address = self.listener.open(host, 0)
        self.dialers: list[Dialer] = []

    def dial(self, node: int = 0, keys: KeyPair | None = None) -> Dialer:
        dialer = Dialer(
            self.context,
            node=node,
            address=self.address,
            keys=keys or self.peers,
            server=self.server.public,
        )
        self.dialers.append(dialer)
        return dialer

    def receive(self, limit_s: float = LIMIT_S) -> tuple[int, Any] | None:
        """The next message, with strangers being answered meanwhile; None if none comes."""
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            self.listener.admit()
            heard = self.listener.receive()
            if heard is not None:
                return heard
            time.sleep(0.002)
        return None

    def close(self) -> None:
        for dialer in self.dialers:
            dialer.close()
        self.listener.close()


@pytest.fixture
def context() -> Iterator[Any]:
    made: Any = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def star(context: Any) -> Iterator[Star]:
    made = Star(context)
    yield made
    made.close()


def answer_of(dialer: Dialer) -> Any:
    assert dialer.socket.poll(LIMIT_S * 1000)
    return dialer.receive()


def test_messages_go_both_ways(star):
    """
    What a node sends arrives with its number, and what is sent to that number arrives there.
    """
    dialers = [star.dial(node) for node in (0, 1)]
    for node, dialer in enumerate(dialers):
        dialer.send(messages.RankJoined(rank=10 + node))
        assert star.receive() == (node, messages.RankJoined(rank=10 + node))
    star.listener.send(1, messages.Hold(number=7))

    assert answer_of(dialers[1]) == messages.Hold(number=7)
    assert dialers[0].receive() is None
    assert star.listener.receive() is None


def test_long_messages_go_both_ways(star):
    """
    What is longer than a frame may be, as the parts of all ranks in a meeting, arrives whole,
    and what follows it too.
    """
    value = bytes(range(256)) * (3 * MAX_BYTES // 256)
    dialer = star.dial(1)
    asked = messages.RankMeets(rank=1, topic="t", count=0, limit_s=1.0, value=value)
    dialer.send(asked)
    assert star.receive() == (1, asked)
    met = messages.RanksMet(topic="t", count=0, values=[value, value])
    star.listener.send(1, met)
    star.listener.send(1, messages.Beat())

    assert answer_of(dialer) == met
    assert answer_of(dialer) == messages.Beat()


def test_node_that_connects_again_is_heard(star):
    """
    A node whose network failed and that connects again, while its old connection still looks
    alive, is heard and answered by the new one.
    """
    star.dial(1).send(messages.RankJoined(rank=1))
    assert star.receive() == (1, messages.RankJoined(rank=1))
    # Only now: which of two that come at once is the later one, nobody knows.
    new = star.dial(1)
    new.send(messages.RankJoined(rank=2))
    assert star.receive() == (1, messages.RankJoined(rank=2))
    star.listener.send(1, messages.Beat())

    assert answer_of(new) == messages.Beat()


def test_message_to_a_node_that_is_gone_is_lost_quietly(star):
    """
    Sending to a node that never came, or is gone, neither waits nor fails.
    """
    started_s = time.monotonic()
    for _ in range(2000):
        star.listener.send(5, messages.Beat())

    assert time.monotonic() - started_s < 10.0


def test_other_keys_are_refused_and_counted(star):
    """
    A caller with the coordinator's public key and a key of its own is not heard, and counted;
    one of the job is still heard.
    """
    star.dial(0, keys=new_keys()).send(messages.RankJoined(rank=0))
    assert star.receive(limit_s=0.5) is None
    star.dial(1).send(messages.RankJoined(rank=1))

    assert star.receive() == (1, messages.RankJoined(rank=1))
    assert star.listener.count_strangers() >= 1
    assert star.listener.count_strangers() == 0


@pytest.mark.parametrize("nonsense", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64])
def test_nonsense_is_refused_and_counted(star, nonsense):
    """
    A caller that speaks another protocol, or none, is counted and does no harm.
    """
    port = int(star.address.rsplit(":", 1)[1])
    with socket.create_connection((HOST, port)) as stranger:
        stranger.sendall(nonsense)
    star.dial().send(messages.NodeHello(node=0))

    assert star.receive() == (0, messages.NodeHello(node=0))
    deadline_s = time.monotonic() + LIMIT_S
    num = 0
    while num == 0 and time.monotonic() < deadline_s:
        num = star.listener.count_strangers()
        time.sleep(0.01)
    assert num == 1


def test_garbage_of_a_node_is_an_error_and_the_next_message_is_heard(star):
    """
    A message that can't be read is dropped with an error that names the node; the one after
    it is read.
    """
    dialer = star.dial(3)
    dialer.socket.send(b"\xc1garbage")
    dialer.socket.send_multipart([b"one", b"too many"])
    dialer.send(messages.NodeHello(node=3))
    for _ in range(2):
        with pytest.raises(MessageError, match="node-3"):
            star.receive()

    assert star.receive() == (3, messages.NodeHello(node=3))


def test_garbage_of_the_coordinator_is_an_error_too(star):
    """
    A node that can't read what the coordinator sent says so, and reads what comes next.
    """
    dialer = star.dial()
    dialer.send(messages.NodeHello(node=0))
    star.receive()
    star.listener.socket.send_multipart([b"node-0", b"\xc1"])
    star.listener.send(0, messages.Beat())
    assert dialer.socket.poll(LIMIT_S * 1000)
    with pytest.raises(MessageError, match="coordinator"):
        dialer.receive()

    assert answer_of(dialer) == messages.Beat()


def test_node_without_a_coordinator_never_waits(context):
    """
    A node whose coordinator is gone can say whatever it wants without waiting for anybody;
    what nobody takes is dropped, not piled up.
    """
    dialer = Dialer(
        context,
        node=1,
        address=f"tcp://{HOST}:1",
        keys=new_keys(),
        server=new_keys().public,
    )
    for number in range(5000):
        dialer.send(messages.Acknowledged(number=number, step=0))
    is_full = not dialer.socket.poll(0, zmq.POLLOUT)
    dialer.close()

    assert is_full


def test_taken_port_names_setting_and_way_out(context, star):
    """
    Opening a port that is taken is an error that names the setting and what to do.
    """
    port = int(star.address.rsplit(":", 1)[1])
    other: Any = zmq.Context()
    listener = Listener(other, new_keys(), new_keys().public)
    with pytest.raises(PortInUseError, match=f"monitor.port {port}.*or to 0") as caught:
        listener.open(HOST, port)
    listener.close()
    other.destroy(linger=0)

    assert caught.value.port == port


def test_address_that_is_not_ours_is_a_clear_error(context):
    """
    An interface that this host does not have is named in the error.
    """
    listener = Listener(context, new_keys(), new_keys().public)
    with pytest.raises(CannotListenError, match=r"192\.0\.2\.77"):
        listener.open("192.0.2.77", 0)
    listener.close()


def test_coordinator_of_this_job_is_found_among_others(context, star):
    """
    Of several addresses the one is found at which the coordinator of this very job answers,
    not one where nobody listens, and not that of another job.
    """
    other_context: Any = zmq.Context()
    other = Star(other_context)
    found: list[str] = []

    def look() -> None:
        found.append(
            reachable(
                other_context,
                [f"tcp://{HOST}:1", other.address, "tcp://no.such.host.invalid:1", star.address],
                keys=star.peers,
                server=star.server.public,
                limit_s=LIMIT_S,
            )
        )

    answer_while(look, [star, other])
    other.close()
    other_context.destroy(linger=0)

    assert found == [star.address]


def test_a_node_that_tries_several_addresses_is_no_stranger_at_any(context):
    """
    A node that reaches the same coordinator by several addresses hangs up on none of them in the
    middle of a handshake: nobody is counted as turned away.
    """
    other_context: Any = zmq.Context()
    star = Star(context, "0.0.0.0")
    port = star.address.rpartition(":")[2]
    addresses = [f"tcp://127.0.0.{i}:{port}" for i in range(1, 6)]

    def look() -> None:
        for _ in range(10):
            reachable(
                other_context,
                addresses,
                keys=star.peers,
                server=star.server.public,
                limit_s=LIMIT_S,
            )

    answer_while(look, [star])
    other_context.destroy(linger=0)
    time.sleep(0.2)
    num = star.listener.count_strangers()
    star.close()

    assert num == 0


def test_coordinator_that_does_not_answer_names_addresses_and_way_out(context):
    """
    When no address answers, the error names all of them and what to set.
    """
    addresses = [f"tcp://{HOST}:1", f"tcp://{HOST}:2"]
    with pytest.raises(UnreachableError, match=r":1 or .*:2.*MASTER_ADDR") as caught:
        reachable(context, addresses, keys=new_keys(), server=new_keys().public, limit_s=0.1)

    assert caught.value.addresses == tuple(addresses)


def test_addresses_of_the_sixth_version_work(context):
    """
    Where there is IPv6 the coordinator can be opened and reached by it.
    """
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this host has no IPv6: {error}")
    star = Star(context, "::1")
    star.dial().send(messages.NodeHello(node=0))
    heard = star.receive()
    star.close()

    assert bracketed("::1") == "[::1]" and star.address.startswith("tcp://[::1]:")
    assert heard == (0, messages.NodeHello(node=0))


def answer_while(work: Any, stars: list[Star]) -> None:
    """Runs ``work`` in a thread while listeners answer who asks to come in."""
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        for star in stars:
            star.listener.admit()
        thread.join(0.005)
