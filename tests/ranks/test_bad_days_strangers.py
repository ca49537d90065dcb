"""Callers that are not of the job: refused, counted once a burst, and without effect."""

import array
import os
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from slav1.coordinator import messages as job_messages
from slav1.monitor.doorway import SILENCE_LIMIT_S
from slav1.recorder import Block
from slav1.session import messages as local
from slav1.session.ticket import Ticket

from ._bad_days import UNTIL_GO, go, ledger, messages, said, start, the_monitor, until

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

GARBAGE = (
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 64,
    os.urandom(4096),
    b"\xff\0\0\0\0\0\0\0\1\x7f",
)


AFTER_THE_CROWD = f"""
    import pathlib, time
    from _trainee import *
    if os.environ["RANK"] == "1":
        while not pathlib.Path("crowd").exists():
            time.sleep(0.01)
    {UNTIL_GO.strip().replace(chr(10), chr(10) + "    ")}
"""
"""Rank 1 comes only when the test says that a crowd is there."""


def ticket_of(job: Any) -> Ticket:
    path = Path(job.folder) / "ticket"
    until(path.exists, "the ticket")
    return Ticket.from_bytes(path.read_bytes())


def refusals(run_dir: Path, what: str) -> list[int]:
    """Counts of the ledger's notices about strangers at ``what``, in order."""
    return [
        entry.evidence["num_refused"]
        for entry in ledger(run_dir)
        if "num_refused" in entry.evidence and what in (entry.message or "")
    ]


def throw_garbage(port: int, seconds: float) -> int:
    """Connects, talks nonsense and hangs up, again and again; returns how often."""
    deadline_s = time.monotonic() + seconds
    num = 0
    while time.monotonic() < deadline_s:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
            stranger.sendall(GARBAGE[num % len(GARBAGE)])
        num += 1
    return num


def knock(context: Any, port: int, keys: tuple[bytes, bytes, bytes] | None, message: bytes) -> Any:
    """A ZeroMQ client that pretends to be node 0; with keys or without."""
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.setsockopt(zmq.IDENTITY, b"node-0")
    if keys is not None:
        dealer.curve_serverkey, dealer.curve_publickey, dealer.curve_secretkey = keys
    dealer.connect(f"tcp://127.0.0.1:{port}")
    for _ in range(100):
        dealer.send(message, zmq.NOBLOCK)
    return dealer


def test_strangers_at_the_port_are_refused_and_counted_once(launch, tmp_path):
    """
    Nonsense, ZeroMQ clients without keys, and clients that know the coordinator's public
    key but have a key of their own, by the thousand for seconds: the run is unharmed,
    and the ledger has one line for the burst.
    """
    bye = job_messages.encode(job_messages.NodeDone(num_seen={}, num_lost=0))
    context = zmq.Context()
    with start(launch, UNTIL_GO, tmp_path, num_ranks=2) as job:
        for rank in (0, 1):
            job.wait_for("joined", rank=rank)
        ticket = ticket_of(job)
        public, secret = zmq.curve_keypair()
        strangers = [
            knock(context, ticket.port, None, bye),
            knock(context, ticket.port, (ticket.server_public.encode(), public, secret), bye),
        ]
        num_thrown = throw_garbage(ticket.port, 2.0)
        for stranger in strangers:
            stranger.close()
        until(lambda: refusals(tmp_path, "port"), "a line about strangers")
        ended = go(job)
    context.destroy(linger=0)

    assert ended.succeeded(), ended
    counted = refusals(tmp_path, "port")
    assert len(counted) == 1, counted
    assert counted[0] > num_thrown / 2 > 20
    assert len(said(ended)) == 1
    assert messages(ledger(tmp_path), "breach") == []
    assert messages(ledger(tmp_path), "end") == ["Training ended."]


def test_strangers_at_the_gate_are_turned_away(launch, tmp_path):
    """
    At the local socket callers with a wrong secret, with nonsense, with descriptors of
    something else, and hundreds that say nothing keep no rank out: one that comes after
    them is let in at once. The ledger has one line for them.
    """
    with Crowd() as crowd, start(launch, AFTER_THE_CROWD, tmp_path, num_ranks=2) as job:
        job.wait_for("joined")
        ticket = ticket_of(job)
        address = local.gate_address(ticket.token, 0)
        caller = crowd.caller
        for _ in range(300):
            caller(address)
        block = Block.create(rank=1, num_slots=16)
        talkers = [
            caller(address, b"\xff" * 1000),
            caller(address, local.encode(hello("0" * 64))),
            caller(address, local.encode(hello("0" * 64)), [block.fd, block.fd]),
            caller(address, local.encode(hello(ticket.token))),
            caller(address, local.encode(hello(ticket.token)), [0, 1]),
            caller(address, local.encode(hello(ticket.token, rank=9)), [block.fd, block.fd]),
            caller(address, local.encode(local.Goodbye(reason="finished"))),
            caller(address, msgspec.msgpack.encode([[[]]] * 1000), [block.fd]),
        ]
        answers = [answer_of(talker) for talker in talkers]
        (Path(job.folder) / "crowd").touch()
        for rank in (0, 1):
            job.wait_for("joined", rank=rank)
        num_descriptors = the_monitor(job).num_fds()
        ended = go(job)
        block.close()

    assert ended.succeeded(), ended
    refused = [type(answer) for answer in answers if answer is not None]
    assert refused == [local.Refused, local.Refused]
    assert num_descriptors < 256 + 50
    counted = refusals(tmp_path, "local socket")
    assert 1 <= len(counted) <= 2, counted
    assert sum(counted) >= 6
    assert messages(ledger(tmp_path), "breach") == []


def test_monitor_without_descriptors_left_goes_on(launch, tmp_path):
    """
    Strangers who hold so many connections that the monitor may open no further file do
    no harm to the ranks that it watches, and keep none out: those who say nothing go first.
    """
    script = f"""
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
    {AFTER_THE_CROWD}
    """
    with Crowd() as crowd, start(launch, script, tmp_path, num_ranks=2) as job:
        job.wait_for("joined")
        ticket = ticket_of(job)
        for _ in range(60):
            crowd.enter_context(socket.create_connection(("127.0.0.1", ticket.port)))
        for _ in range(60):
            crowd.caller(local.gate_address(ticket.token, 0))
        came_s = time.monotonic()
        (Path(job.folder) / "crowd").touch()
        job.wait_for("joined", rank=1)
        waited_s = time.monotonic() - came_s
        ended = go(job)

    assert ended.succeeded(), ended
    assert waited_s < SILENCE_LIMIT_S
    assert messages(ledger(tmp_path), "breach") == []
    assert messages(ledger(tmp_path), "end") == ["Training ended."]


def test_garbage_of_a_rank_ends_nothing(launch, tmp_path):
    """
    A rank that sends nonsense, a second hello, or descriptors that nobody asked for, stays
    under watch, and so do all others; the ledger has a line that the monitor goes on.
    """
    script = """
    import array, socket
    from _trainee import *
    from slav1.session import messages
    session = join_run()
    train(session, num_steps=10)
    link = session._link._socket
    hello = messages.Hello(token="", rank=0, local_rank=0, pid=1, thread=1, stack_signal=0)
    for raw in (b"\\xc1", os.urandom(2000), b"x" * 100_000, messages.encode(hello)):
        for _ in range(20):
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1]))]
            link.sendmsg([raw], rights)
    train(session, num_steps=20, first_step=10)
    session.leave("finished")
    """
    with start(launch, script, tmp_path, num_ranks=2) as job:
        ended = job.wait()

    entries = ledger(tmp_path)
    seen = {entry.rule: entry.evidence for entry in entries if entry.kind == "verdict"}
    assert ended.succeeded(), ended
    assert seen["non_finite"]["num_samples"] == 60
    assert len(messages(entries, "notice")) == 1, messages(entries, "notice")
    assert "goes on after a mishap: MessageError" in messages(entries, "notice")[0]
    assert messages(entries, "end") == ["Training ended."]


def test_garbage_of_an_insider_ends_nothing(launch, tmp_path):
    """
    Even somebody with the keys of the job, who sends nonsense, findings that are none, or
    speaks for nodes that the job does not have, ends neither monitor nor training.
    """
    with start(launch, UNTIL_GO, tmp_path) as job:
        job.wait_for("joined")
        ticket = ticket_of(job)
        context: Any = zmq.Context()
        keys = (ticket.server_public, ticket.client_public, ticket.client_secret)
        for name in (b"node-9", b"node-x", b"\xff"):
            dealer = context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.IDENTITY, name)
            dealer.curve_serverkey, dealer.curve_publickey, dealer.curve_secretkey = (
                key.encode() for key in keys
            )
            dealer.connect(f"tcp://127.0.0.1:{ticket.port}")
            report = job_messages.Report(samples=[], findings=[{"rule": 1}, {}])
            for raw in (b"\xc1", b"", os.urandom(5000), job_messages.encode(report)):
                dealer.send(raw)
            dealer.close(linger=2000)
        time.sleep(0.5)
        lived = the_monitor(job).is_running()
        ended = go(job)
        context.term()

    assert lived and ended.succeeded(), ended
    assert messages(ledger(tmp_path), "end") == ["Training ended."]
    told = messages(ledger(tmp_path), "notice")
    assert 1 <= len(told) <= 8, told
    assert all("goes on after a mishap" in text for text in told), told


def hello(token: str, rank: int = 1) -> local.Hello:
    return local.Hello(
        token=token, rank=rank, local_rank=1, pid=os.getpid(), thread=0, stack_signal=0
    )


class Crowd(ExitStack):
    """Callers who all hang up in the end."""

    def caller(self, address: str, message: bytes | None = None, fds: Sequence[int] = ()) -> Any:
        """Connects to the gate, and says something unless it keeps silent."""
        each = self.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        each.settimeout(10)
        until(lambda: is_connected(each, address), "room at the gate")
        if message is not None:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            each.sendmsg([message], rights if fds else [])
        return each


def is_connected(each: Any, address: str) -> bool:
    try:
        each.connect(address)
    except BlockingIOError:
        return False
    return True


def answer_of(each: Any) -> local.FromMonitor | None:
    """What the monitor says to a caller; None if it just hangs up."""
    try:
        raw = each.recv(local.MAX_BYTES)
    except ConnectionError:
        return None
    return local.decode_from_monitor(raw) if raw else None
