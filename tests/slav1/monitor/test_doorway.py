"""The gate and those who stand in it without a word."""

import array
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slav1.coordinator.transport import MessageError
from slav1.monitor.doorway import MAX_WAITING, SILENCE_LIMIT_S, Doorway
from slav1.monitor.gate import Connection, Gate
from slav1.session import messages


class Entrance:
    """A gate, its doorway, and callers outside."""

    def __init__(self) -> None:
        self.token = os.urandom(32).hex()
        self.gate = Gate(self.token, 0)
        self.forgotten: list[Connection] = []
        self.doorway = Doorway(self.gate, self.forgotten.append)
        self.outside: list[socket.socket] = []

    def call(self, message: bytes | None = None, fds: tuple[int, ...] = ()) -> socket.socket:
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.settimeout(5)
        caller.connect(messages.gate_address(self.token, 0))
        self.outside.append(caller)
        if message is not None:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            caller.sendmsg([message], rights if fds else [])
        return caller

    def hello(self, **changes: Any) -> bytes:
        plain = {"rank": 0, "local_rank": 0, "pid": 1, "thread": 1, "stack_signal": 0}
        return messages.encode(messages.Hello(**{"token": self.token, **plain, **changes}))

    def close(self) -> None:
        for caller in self.outside:
            caller.close()
        self.doorway.close()
        self.gate.close()


@pytest.fixture
def entrance() -> Iterator[Entrance]:
    made = Entrance()
    yield made
    made.close()


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_hello_with_the_secret_is_let_in(entrance):
    """
    A caller that knows the secret and brings two descriptors is let in with them, and is
    known by the process id that the kernel tells.
    """
    entrance.call(entrance.hello(rank=3), fds=(0, 1))
    (caller,) = entrance.doorway.accept(0.0)
    hello, fds = entrance.doorway.hear(caller)
    for fd in fds:
        os.close(fd)
    caller.close()

    assert hello.rank == 3
    assert caller.pid == os.getpid()
    assert len(fds) == 2
    assert entrance.doorway.num_turned_away == 0


@pytest.mark.parametrize(
    ("what", "num_fds"),
    [
        ("another secret", 2),
        ("nonsense", 2),
        ("another message", 0),
        ("no descriptors", 0),
        ("one descriptor", 1),
        ("nothing", 0),
    ],
)
def test_everybody_else_is_turned_away_with_nothing_kept(entrance, what, num_fds):
    """
    Who has another secret, says something else, brings too few descriptors, or
    hangs up is turned away and forgotten, and none of its descriptors stays open.
    """
    said = {
        "another secret": entrance.hello(token="x" * 64),
        "nonsense": b"\xc1" * 30,
        "another message": messages.encode(messages.Goodbye(reason="finished")),
    }.get(what, entrance.hello())
    caller = entrance.call(None if what == "nothing" else said, fds=(0,) * num_fds)
    if what == "nothing":
        caller.shutdown(socket.SHUT_RDWR)
    before = num_descriptors()
    (heard,) = entrance.doorway.accept(0.0)
    answer = entrance.doorway.hear(heard)

    assert answer is None
    assert entrance.forgotten == [heard]
    assert entrance.doorway.num_turned_away == 1
    assert num_descriptors() == before


def test_silent_callers_wait_only_so_long(entrance):
    """
    A caller that says nothing is not heard, blocks nobody, and is turned away in the end.
    """
    entrance.call()
    (silent,) = entrance.doorway.accept(100.0)
    started_s = time.monotonic()
    assert entrance.doorway.hear(silent) is None
    assert time.monotonic() - started_s < 1.0
    entrance.doorway.send_away_silent(100.0 + SILENCE_LIMIT_S - 1)
    assert entrance.doorway.num_turned_away == 0
    entrance.doorway.send_away_silent(100.0 + SILENCE_LIMIT_S + 1)

    assert entrance.forgotten == [silent]


def test_crowd_of_silent_callers_is_bounded(entrance):
    """
    However many callers say nothing, only so many are kept; the newest can still come in.
    """
    for number in range(MAX_WAITING + 50):
        entrance.call()
        list(entrance.doorway.accept(float(number)))
    entrance.call(entrance.hello(), fds=(0, 1))
    (rank,) = entrance.doorway.accept(1000.0)
    heard = entrance.doorway.hear(rank)
    assert heard is not None
    for fd in heard[1]:
        os.close(fd)
    rank.close()

    assert entrance.doorway.num_turned_away == 51


@contextmanager
def only_free(num: int) -> Iterator[None]:
    """Lets this process open ``num`` further descriptors and no more."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    free = (number for number in range(usual[0]) if number not in taken)
    # The listing itself took one, which is free again.
    last = [next(free) for _ in range(num)][-1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def test_crowd_leaves_room_for_the_descriptors_of_a_rank(entrance):
    """
    Silent callers may take all descriptors but those that a rank brings with its hello,
    which the kernel would drop without a word.
    """
    with only_free(15):
        for _ in range(6):
            entrance.call()
        entrance.call(entrance.hello(), fds=(0, 1))
        *_, rank = entrance.doorway.accept(0.0)
        heard = entrance.doorway.hear(rank)
    assert heard is not None
    for fd in heard[1]:
        os.close(fd)
    rank.close()

    assert 1 <= entrance.doorway.num_turned_away <= 6


def test_gate_of_a_run_opens_once(entrance):
    """
    A second monitor of the same run and node can't open its gate; one of another node can.
    """
    with pytest.raises(OSError, match="watches node 0 already"):
        Gate(entrance.token, 0)
    Gate(entrance.token, 1).close()


def test_message_that_cannot_be_read_names_its_process():
    """
    What a rank says that is no message is an error with its process id, and the next
    message is read.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    connection = Connection(ours, 4711)
    with pytest.raises(BlockingIOError):
        connection.receive()
    theirs.send(b"\xc1")
    with pytest.raises(MessageError, match="process 4711"):
        connection.receive()
    theirs.send(messages.encode(messages.AskState()))
    heard = connection.receive()
    theirs.close()
    hung_up = connection.receive()
    connection.send(messages.Farewell())
    connection.close()

    assert heard == (messages.AskState(), [])
    assert hung_up == (None, [])
