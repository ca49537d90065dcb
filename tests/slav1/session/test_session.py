"""A rank's session: its link to a monitor that may be slow, gone, or not there at all."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slav1.ledger import read_ledger
from slav1.recorder.layout import Word
from slav1.recorder.ring import read_ring_file
from slav1.session import Session, messages, vital_signs
from slav1.session import session as module
from slav1.session.link import MonitorLink, SessionError
from slav1.session.session import Session as SessionClass

TOKEN = "a" * 64


class Gatekeeper:
    """The other end of the link, as the test wants it to behave."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.token = f"{id(self):016x}" + TOKEN[16:]
        self._listener.bind(messages.gate_address(self.token, 0))
        self._listener.listen()
        self.heard: list[Any] = []
        self.caller: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def die(self) -> None:
        """Ends as a killed process does."""
        self._listener.close()
        if self.caller is not None:
            self.caller.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        if self.caller is not None:
            self.caller.close()

    def _serve(self) -> None:
        try:
            self.caller, _ = self._listener.accept()
        except OSError:
            return
        while True:
            raw, fds, _, _ = socket.recv_fds(self.caller, messages.MAX_BYTES, 4)
            for fd in fds:
                socket.close(fd)
            if not raw:
                return
            message = messages.decode_from_rank(raw)
            self.heard.append(message)
            answer = self._answer(message)
            if answer is not None:
                self.caller.send(messages.encode(answer))


def friendly(message: Any) -> Any:
    """A monitor as it should be."""
    if isinstance(message, messages.AskState):
        return messages.State(state={"x": 1}, number=message.number)
    return {
        messages.Hello: messages.Welcome(),
        messages.Goodbye: messages.Farewell(),
    }.get(type(message))


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Any]:
    opened: list[Any] = []

    def _connect(answer: Callable[[Any], Any] = friendly) -> tuple[Session, Gatekeeper]:
        gatekeeper = Gatekeeper(answer)
        session = Session(rank=0, run_folder=tmp_path, num_slots=16, attempt=2)
        opened.extend([session, gatekeeper])
        session.connect(token=gatekeeper.token, node=0, local_rank=0, limit_s=1.0)
        return session, gatekeeper

    yield _connect
    for each in opened:
        if isinstance(each, SessionClass):
            each.leave("finished")
        else:
            each.close()


def test_session_says_hello_and_goodbye(connect):
    """
    A rank introduces itself with its place and says goodbye with its reason, once.
    """
    session, gatekeeper = connect()
    session.note("by the way", step=4, path=Path("/x"))
    assert session.ask_state() == {"x": 1}
    session.leave("finished")
    session.leave("finished")
    kinds = [type(message).__name__ for message in gatekeeper.heard]

    assert kinds == ["Hello", "Note", "AskState", "Goodbye"]
    assert gatekeeper.heard[0].rank == 0
    assert gatekeeper.heard[1].evidence == {"path": "/x"}


def test_refusal_says_why(connect):
    """
    A rank that the monitor does not take ends with the monitor's reason.
    """
    with pytest.raises(SessionError, match="did not take rank 0: it is a stranger"):
        connect(lambda _: messages.Refused(reason="it is a stranger"))


def test_absent_monitor_is_a_clear_error_in_time(tmp_path):
    """
    Where no monitor answers, a rank gives up in time and says where to look.
    """
    started_s = time.monotonic()
    with pytest.raises(SessionError, match="look at the output of local rank 0"):
        MonitorLink(messages.gate_address("nobody" * 10, 0), 0.2)

    assert time.monotonic() - started_s < 2.0


def test_dead_monitor_is_noticed_at_a_boundary_once(connect, tmp_path, monkeypatch, capfd):
    """
    A monitor that has died is noticed at a step boundary by time, told once, written into
    the ledger it can't write any more, and the rank saves its own ring.
    """
    monkeypatch.setattr(module, "_CHECK_EVERY_NS", 0)
    session, gatekeeper = connect()
    session.at_boundary(0)
    gatekeeper.die()
    for step in range(1, 5):
        session.recorder.publish(session.recorder.end_step(step))
        assert session.at_boundary(step) is None
    assert session.ask_state() is None
    session.note("nobody hears this")
    session.leave("finished")

    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[sla]")]
    (entry,) = read_ledger(tmp_path / "ledger.jsonl")
    assert len(told) == 1
    assert (entry.kind, entry.attempt, entry.rank, entry.step) == ("notice", 2, 0, 1)
    assert [sample.step for sample in read_ring_file(tmp_path / "ring-0.bin")] == [1, 2, 3, 4]


def test_boundary_does_not_look_every_step(connect, monkeypatch):
    """
    Whether the monitor lives is asked by time, not at every step.
    """
    session, _ = connect()
    looks: list[int] = []
    monkeypatch.setattr(session, "_look_after_monitor", looks.append)
    for step in range(1000):
        session.at_boundary(step)

    assert looks == [0]


def test_late_answer_does_not_answer_the_next_question(connect):
    """
    An answer that came after its asker had stopped waiting is not taken for the next one's.
    """
    session, gatekeeper = connect()
    gatekeeper.caller.send(messages.encode(messages.State(state="stale")))

    assert session.ask_state() == {"x": 1}


def test_nonsense_from_the_monitor_is_no_answer(connect):
    """
    What can't be read counts as no answer.
    """
    session, gatekeeper = connect(
        lambda message: None if isinstance(message, messages.AskState) else friendly(message)
    )
    gatekeeper.caller.settimeout(5)
    asker = threading.Timer(0.1, gatekeeper.caller.send, [b"\xc1"])
    asker.start()
    answer = session.ask_state()
    asker.join()

    assert answer is None


class UnspeakableError(Exception):
    """An exception whose own text fails."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError(""), "ValueError: "),
        (OSError("\udcff is no name"), "OSError: ? is no name"),
        (UnspeakableError(), "UnspeakableError"),
        (ValueError("x" * 5000), "ValueError: " + "x" * 1988),
    ],
)
def test_any_exception_can_be_published(connect, error, text):
    """
    Whatever leaves training is published by one line; publishing it never raises another.
    """
    session, gatekeeper = connect()
    session.fail(error, 3)
    session.leave("finished")

    assert gatekeeper.heard[1] == messages.Failure(error=text, step=3)


def test_held_rank_gives_up_on_a_monitor_without_a_beat(connect, monkeypatch):
    """
    A rank that is held waits as long as its monitor gives signs of life, and goes on, for
    good, when none has come for long.
    """
    monkeypatch.setattr(vital_signs, "_BEAT_LIMIT_NS", int(0.3e9))
    session, _ = connect()
    words = session._block.words
    words[Word.HOLD] = 1
    started_s = time.monotonic()
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.05) and time.monotonic() - started_s < 1.0:
            words[Word.BEAT] += 1

    thread = threading.Thread(target=beat)
    thread.start()
    action = session.at_boundary(0)
    waited_s = time.monotonic() - started_s
    stop.set()
    thread.join()
    words[Word.SCHEDULED] = words[Word.HOLD] = 2
    second = session.at_boundary(1)

    assert action is None and 1.0 < waited_s < 5.0
    assert not session.is_monitor_alive()
    assert second is not None or session.command.is_monitor_gone


def test_session_without_a_monitor_records_and_saves(tmp_path):
    """
    A rank that nobody watches records all the same, and saves its ring when it leaves. What
    its saves have to tell reaches the ledger, and a save that outlasts it disturbs nobody.
    """
    session = Session(rank=1, run_folder=tmp_path, num_slots=16)
    session.peers.record("checkpoint_committed", "Kept.", step=0, path="/x")
    session.recorder.publish(session.recorder.end_step(0))
    assert session.at_boundary(0) is None
    session.leave("finished")

    assert [sample.step for sample in read_ring_file(tmp_path / "ring-1.bin")] == [0]
    (entry,) = read_ledger(tmp_path / "ledger.jsonl")
    assert (entry.kind, entry.rank, entry.evidence) == ("checkpoint_committed", 1, {"path": "/x"})
    assert session.peers.io_percent == 100
