"""Mishaps: told once, survived, and given up on when nothing works any more."""

import os

import pytest

from slav1.monitor.events import MAX_FAILURES, Events, Mishaps


def fail() -> None:
    raise KeyError("nobody foresaw this")


def fail_elsewhere() -> None:
    raise KeyError("nor that")


def test_mishap_is_told_once_for_each_place():
    """
    A failure is told with its type and place, once however often it comes, and another one
    for itself.
    """
    told: list[str] = []
    mishaps = Mishaps(told.append)
    for _ in range(10):
        mishaps.run(fail)
        mishaps.run(lambda: None)
        mishaps.run(fail_elsewhere)

    assert len(told) == 2
    assert "KeyError at test_events.py:" in told[0] and "nobody foresaw this" in told[0]


def test_failing_for_ever_is_given_up():
    """
    When nothing has worked for long the failure is raised; one success starts anew.
    """
    mishaps = Mishaps(lambda _: None)
    for _ in range(MAX_FAILURES - 1):
        mishaps.run(fail)
    mishaps.run(lambda: None)
    for _ in range(MAX_FAILURES - 1):
        mishaps.run(fail)
    with pytest.raises(KeyError):
        mishaps.run(fail)


def test_one_that_fails_does_not_keep_others_from_being_heard():
    """
    Whoever is readable is called, also when an earlier one failed; who is unwatched is not.
    """
    called: list[str] = []
    events = Events(Mishaps(called.append))
    pipes = [os.pipe() for _ in range(3)]
    for read, write in pipes:
        os.write(write, b"x")
        del read
    events.watch(pipes[0][0], fail)
    events.watch(pipes[1][0], lambda: called.append("heard"))
    events.watch(pipes[2][0], lambda: called.append("unwatched"))
    events.unwatch(pipes[2][0])
    events.unwatch(pipes[2][0])
    events.wait(0.0)
    for pair in pipes:
        for fd in pair:
            os.close(fd)

    assert called[1:] == ["heard"] and "KeyError" in called[0]
