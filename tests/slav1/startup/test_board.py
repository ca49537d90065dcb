"""The board over torch's own stores, and what it knows of a machine's ranks."""

import threading
import time

import pytest

from slav1.startup._board import Board
from slav1.startup._presence import Presence
from slav1.startup._rendezvous import Rendezvous

dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def make_board():
    boards = []

    def make(connect):
        board = Board(connect=connect, prefix="test", interval_s=0.01, watched=("here", "there"))
        boards.append(board)
        return board

    yield make
    for board in boards:
        board.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("slav1")]


def wait_until(is_true):
    deadline_s = time.monotonic() + 5
    while not is_true() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return is_true()


def test_ranks_see_each_other(make_board):
    """
    What one rank announces the others read, place by place.
    """
    store = dist.HashStore()
    boards = [make_board(lambda: store) for _ in range(3)]
    for rank, board in enumerate(boards):
        board.announce("here" if rank < 2 else "there", rank)

    assert wait_until(lambda: all(b.present("here") == {0, 1} for b in boards))
    assert wait_until(lambda: all(b.present("there") == {2} for b in boards))


def test_the_first_verdict_is_everyones(make_board):
    """
    Of two ranks that conclude, both get the verdict of the first, and so does a third
    that only reads.
    """
    store = dist.HashStore()
    first, second, third = (make_board(lambda: store) for _ in range(3))

    assert first.conclude({"by": 1}, 2) == {"by": 1}
    assert second.conclude({"by": 2}, 2) == {"by": 1}
    assert wait_until(lambda: third.verdict == {"by": 1})


def test_without_a_store_a_rank_decides_alone(make_board):
    """
    While the store can't be reached nobody waits longer than was said, and the own
    verdict counts; once it is there, what was announced before is there too.
    """
    stores = []
    board = make_board(lambda: stores[0] if stores else None)
    board.announce("here", 3)
    begin_s = time.monotonic()

    assert board.conclude({"by": 3}, 0.2) == {"by": 3}
    assert time.monotonic() - begin_s < 2
    assert not board.is_reached
    stores.append(dist.HashStore())
    assert wait_until(lambda: board.present("here") == {3})


def test_a_store_that_breaks_is_left_and_found_again(make_board):
    """
    After an error of the store its next incarnation gets all announcements anew.
    """

    class Broken:
        def append(self, key, value):
            raise dist.DistNetworkError("gone")

    stores = [Broken()]
    board = make_board(lambda: stores[0])
    board.announce("here", 1)
    time.sleep(0.05)
    is_reached = board.is_reached
    stores[0] = dist.HashStore()

    assert not is_reached
    assert wait_until(lambda: board.present("here") == {1})


def test_a_store_that_blocks_holds_nobody(make_board):
    """
    A store that takes a question and never answers delays neither a look nor the end.
    """
    release = threading.Event()

    class Mute:
        def check(self, keys):
            release.wait(10)
            return False

    board = make_board(Mute)
    begin_s = time.monotonic()
    has_answered = board.look(0.1)
    board.close(0.1)
    seconds_s = time.monotonic() - begin_s
    release.set()

    assert not has_answered
    assert seconds_s < 2


def test_ranks_of_one_machine_see_and_hear_each_other():
    """
    Without any store, ranks that name the same meeting are seen, others are not; a text
    reaches each of them once; who has closed is gone.
    """
    here = [Presence(meeting="a", rank=rank) for rank in (0, 2)]
    elsewhere = Presence(meeting="b", rank=1)
    again = Presence(meeting="a", rank=2)

    assert here[0].seen(range(4)) == {0, 2}
    assert not any(one.is_taken for one in (*here, elsewhere))
    assert again.is_taken
    here[0].tell(range(4), b"the end")
    assert (here[1].heard(), here[1].heard()) == (b"the end", None)
    assert (here[0].heard(), elsewhere.heard()) == (None, None)
    here[1].close()
    again.close()
    assert here[0].seen(range(4)) == {0}
    here[0].close()
    elsewhere.close()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (None, None, None, "job/0", False)),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "n", "MASTER_PORT": "1"},
            (3, 4, "n:1", "job/0", False),
        ),
        ({"RANK": "x", "WORLD_SIZE": "-4", "MASTER_ADDR": "n"}, (None, None, None, "job/0", False)),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, (None, 4, None, "job/0", True)),
        (
            {"TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "2"},
            (None, None, None, "r/2", False),
        ),
    ],
)
def test_what_the_launcher_says(environment, expected):
    """
    What is missing or no number is unknown, and a restart is another attempt.
    """
    place = Rendezvous.read(environment=environment)

    assert expected == (
        place.rank,
        place.world_size,
        place.address,
        place.attempt,
        place.is_one_node,
    )


def test_an_argument_wins_over_the_launcher():
    """
    What the caller knows counts more than a variable.
    """
    place = Rendezvous.read(rank=1, world_size=2, environment={"RANK": "0", "WORLD_SIZE": "9"})

    assert (place.rank, place.world_size) == (1, 2)
