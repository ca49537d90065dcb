"""How long a rank has been silent, on a machine with too little processor for it."""

import time
from collections.abc import Iterator

import pytest

from slav1.monitor.watched_rank import WatchedRank
from slav1.phase import Phase

from ._ranks import Rank


class Queued:
    """A process that the kernel says has waited for a processor for so long."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def queued_s(self) -> float:
        return self.seconds

    def state(self) -> str:
        return "R"

    def close(self) -> None: ...


@pytest.fixture
def trainer() -> Iterator[Rank]:
    rank = Rank(0)
    yield rank
    rank.close()


@pytest.fixture
def watched(trainer: Rank) -> Iterator[WatchedRank]:
    rank = WatchedRank(trainer.hello, trainer.connection(), trainer.fds())
    rank.process.close()
    rank.process = Queued()
    yield rank
    rank.close()


def test_waiting_for_a_processor_is_no_silence(trainer: Rank, watched: WatchedRank) -> None:
    """
    Time in which the rank could have run but got no processor is left out, from the first
    look at its silence on; what it waited before does not count.
    """
    trainer.recorder.enter(int(Phase.FORWARD))
    start_s = time.monotonic()
    watched.process.seconds = 50.0
    assert watched.pulse(start_s + 0.5).since_progress_s == pytest.approx(0.5, abs=0.05)

    watched.process.seconds = 53.0

    assert watched.pulse(start_s + 4.5).since_progress_s == pytest.approx(1.5, abs=0.05)


def test_a_wait_that_is_told_late_does_not_look_like_progress(
    trainer: Rank, watched: WatchedRank
) -> None:
    """
    The kernel counts a wait when it is over: a silence never shrinks because of it, until
    the rank does get on.
    """
    trainer.recorder.enter(int(Phase.FORWARD))
    start_s = time.monotonic()
    watched.pulse(start_s + 0.5)
    before_s = watched.pulse(start_s + 2.0).since_progress_s

    watched.process.seconds = 1.8
    assert watched.pulse(start_s + 2.1).since_progress_s == before_s
    trainer.recorder.enter(int(Phase.BACKWARD))

    assert watched.pulse(time.monotonic() + 0.5).since_progress_s < before_s
