"""The ways on which ranks meet: long messages, many threads, a store without monitors."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slav1.checkpoint.peers import PeersMissingError
from slav1.monitor.gate import Connection
from slav1.session import messages
from slav1.session.answers import Answers
from slav1.session.parts import PART_BYTES, Joiner, Part, cut
from slav1.session.peers import MAX_VALUE_BYTES, RunPeers
from slav1.session.store_peers import StorePeers


class Ends:
    """Both ends of a local socket: the monitor's, and a rank's that waits for answers."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        self.answers = Answers(mine)
        self.monitor = Connection(theirs, 1)

    def close(self) -> None:
        self.answers.close()
        self.monitor.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returns or raises, all of them at the same time."""
    found: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            found[place] = calls[place]()
        except PeersMissingError as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_state_larger_than_the_socket_arrives(ends):
    """
    An answer many times larger than the socket's buffer reaches its asker whole, and the
    monitor never waits for it to be read.
    """
    state = {"x": "y" * 3_000_000}
    number = ends.answers.new_number()
    ends.monitor.send(messages.State(state=state, number=number))
    assert ends.monitor.is_sending

    def flush() -> None:
        while ends.monitor.is_sending:
            ends.monitor.flush()

    _, answer = in_threads(flush, lambda: ends.answers.wait(number, 10))

    assert answer.state == state


def test_each_thread_gets_its_own_answer(ends):
    """
    Answers find their askers whatever the order they come in, and one that nobody waits for
    any more is dropped.
    """
    numbers = [ends.answers.new_number() for _ in range(8)]
    gone = ends.answers.new_number()
    ends.answers.forget(gone)

    def answer() -> None:
        for number in (gone, *reversed(numbers)):
            ends.monitor.send(messages.State(state=number * 10, number=number))

    waits = [lambda number=number: ends.answers.wait(number, 10) for number in numbers]
    found = in_threads(*waits, answer)

    assert [state.state for state in found[:-1]] == [10 * number for number in numbers]


@pytest.mark.parametrize("is_far_end", [True, False])
def test_a_closed_link_lets_all_threads_out(ends, is_far_end):
    """
    Whoever waits gets no answer as soon as either end hangs up.
    """
    numbers = [ends.answers.new_number() for _ in range(3)]
    close = ends.monitor.close if is_far_end else ends.answers.close
    timer = threading.Timer(0.1, close)
    timer.start()
    found = in_threads(*(lambda n=n: ends.answers.wait(n, 15) for n in numbers))
    timer.join()

    assert found == [None, None, None]
    assert ends.answers.has_ended


@pytest.mark.parametrize("num_bytes", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_a_cut_message_is_joined_again(num_bytes):
    """
    A message of any length comes out as it went in; one whose sender stopped half-way, or
    whose beginning is missing, is dropped and spoils no other.
    """
    raw = bytes(range(256)) * (num_bytes // 256) + b"x" * (num_bytes % 256)
    pieces = list(cut(raw, 7))
    joiner = Joiner()
    joiner.add(Part(number=6, index=0, is_last=False, data=b"never ends"))
    joiner.add(Part(number=5, index=1, is_last=True, data=b"never began"))
    if len(pieces) == 1:
        assert pieces == [raw]
        return
    joined = [joiner.add(messages.decode_from_rank(piece)) for piece in pieces]

    assert joined == [None] * (len(pieces) - 1) + [raw]
    assert all(len(piece) < 1.1 * PART_BYTES for piece in pieces)


def test_what_is_too_long_is_the_callers_mistake():
    """
    A value that no monitor should carry is refused before anybody waits.
    """
    peers = RunPeers(
        rank=0, world_size=2, link=lambda: None, write=print, spare=None, io_percent=int
    )

    with pytest.raises(ValueError, match=r"'big' has .* at most"):
        peers.gather("big", b"x" * (MAX_VALUE_BYTES + 1), limit_s=1)
    with pytest.raises(ValueError, match="kind must be one of"):
        peers.record("gossip", "text")


@pytest.fixture
def stored() -> list[RunPeers]:
    """Three ranks of one run without monitors, over a real store."""
    from torch.distributed import HashStore

    store = HashStore()
    return [
        RunPeers(
            rank=rank,
            world_size=3,
            link=lambda: None,
            write=lambda _: None,
            io_percent=lambda: 100,
            spare=StorePeers(lambda: store, rank=rank, world_size=3, name="n"),
        )
        for rank in range(3)
    ]


def test_ranks_meet_through_the_store(stored):
    """
    Without monitors every rank gets every value in rank order, meeting after meeting.
    """
    for turn in range(70):
        met = in_threads(
            *(lambda p=p, t=turn: p.gather("t", [t, p.rank], limit_s=10) for p in stored)
        )
        assert met == [[[turn, 0], [turn, 1], [turn, 2]]] * 3


def test_a_missing_rank_is_named_to_all_through_the_store(stored):
    """
    Those that wait and the one that comes too late fail alike, and the next meeting is met.
    """
    early = in_threads(*(lambda p=p: p.gather("t", 0, limit_s=0.3) for p in stored[:2]))
    (late,) = in_threads(lambda: stored[2].gather("t", 0, limit_s=10))
    after = in_threads(*(lambda p=p: p.gather("t", 1, limit_s=10) for p in stored))

    told = {(error.arrived, error.missing, str(error)) for error in (*early, late)}
    assert len(told) == 1
    assert next(iter(told))[:2] == ((0, 1), (2,))
    assert after == [[1, 1, 1]] * 3


def test_all_ranks_change_to_the_store_together(stored):
    """
    A rank whose monitor dies in a meeting fails there, and whoever comes to that meeting
    later fails at once; after that all meet in the store.
    """
    spare = stored[0]._spare
    assert not spare.is_in_use
    spare.fail("t", 0, "the monitor has ended")
    stored[0].change_over()
    found = in_threads(*(lambda p=p: p.gather("t", 0, limit_s=10) for p in stored[1:]))

    assert all(stored_of._spare.is_in_use for stored_of in stored)
    assert ["the monitor has ended" in str(error) for error in found] == [True, True]


def test_a_meeting_that_was_broken_off_blames_no_call():
    """
    Where no rank is missing, as when a monitor has died, the error says only why it was broken
    off; where one is, it says what to look for.
    """
    broken = PeersMissingError(topic="save", missing=(), arrived=[0], reason="its monitor ended")
    missing = PeersMissingError(topic="save", missing=[1], arrived=[0])

    assert str(broken) == "save entered by ranks [0], and broken off: its monitor ended."
    assert "look for a call that only some ranks make" in str(missing)
