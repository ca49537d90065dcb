"""The journal and its ledger: incidents, late files, and runs that are taken."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slav1.breach import Status
from slav1.contract import Contract
from slav1.coordinator.run_ledger import RunLedger, RunTakenError, is_taken
from slav1.coordinator.say import say
from slav1.decision import Action
from slav1.ledger import LedgerWriter
from slav1.policy import Verdict

from ._books import Books, finding, recovery

RULE = Contract.level("L1").rules["hang"]
LOGS = Verdict(action=Action.LOG, would_have=Action.STOP)


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    opened = Books(tmp_path, attempt=3)
    yield opened
    opened.close()


def test_incident_has_one_beginning_and_one_end(books):
    """
    Breaches of one rule and rank are one incident until a recovery ends it; the next one
    opens another.
    """
    for breach in (finding("hang", 1), finding("hang", 1), recovery("hang", 1), finding("hang", 1)):
        books.journal.breach(breach, RULE, LOGS)
    kinds = [entry.kind for entry in books.entries()]

    assert kinds == [
        "incident_begin",
        "breach",
        "breach",
        "incident_end",
        "incident_begin",
        "breach",
    ]
    assert {entry.attempt for entry in books.entries()} == {3}


def test_incidents_of_two_ranks_are_two(books):
    """
    A recovery of one rank leaves the incident of another open.
    """
    books.journal.breach(finding("hang", 0), RULE, LOGS)
    books.journal.breach(finding("hang", 1), RULE, LOGS)
    books.journal.breach(recovery("hang", 0), RULE, LOGS)

    books.journal.breach(finding("hang", 0), RULE, LOGS)
    books.journal.breach(finding("hang", 1), RULE, LOGS)

    begun = [entry.rank for entry in books.entries("incident_begin")]
    assert begun == [0, 1, 0]


def test_recovery_without_an_incident_is_not_written(books):
    """
    What never began does not end.
    """
    books.journal.breach(recovery("hang", 0), RULE, LOGS)

    assert books.entries() == []


def test_notice_opens_no_incident(books):
    """
    A finding that is only a notice is one line of that kind.
    """
    books.journal.breach(finding("hang", 0, status=Status.NOTICE), RULE, LOGS)

    assert [entry.kind for entry in books.entries()] == ["notice"]


def test_breach_says_what_would_have_been_done(books):
    """
    A breach that is only observed names the action that was not taken.
    """
    books.journal.breach(finding("hang", 0, arl0=1e6), RULE, LOGS)
    breach = books.entries("breach")[0]

    assert breach.action == breach.evidence["would_have"] == "stop"
    assert breach.evidence["arl0"] == 1e6


def test_end_of_the_run_ends_incidents(books):
    """
    Incidents that are open when the run ends are ended by its end.
    """
    books.journal.breach(finding("hang", 0), RULE, LOGS)
    books.journal.close()

    assert books.messages("incident_end") == ["The run ended."]


def test_file_that_cannot_be_made_is_made_later(tmp_path):
    """
    Lines wait until the ledger can be made, with its folder, and are then all there in
    order; people are told once.
    """
    obstacle = tmp_path / "run"
    obstacle.write_text("in the way")
    books = Books(obstacle)
    for number in range(5):
        books.journal.note("notice", f"line {number}")
        books.ledger.flush()
    obstacle.unlink()
    books.ledger.flush()
    books.journal.note("notice", "line 5")
    books.close()

    assert len(books.told) == 1 and "can't be made" in books.told[0]
    assert books.messages("notice") == [f"line {number}" for number in range(6)]


def test_lines_that_were_lost_are_counted(tmp_path):
    """
    What never reached the disk is told in the end, with its number, once.
    """
    obstacle = tmp_path / "run"
    obstacle.write_text("in the way")
    books = Books(obstacle)
    for number in range(LedgerWriter.MAX_WAITING + 10):
        books.journal.note("verdict", f"line {number}")
    books.close()
    books.close()

    assert len(books.told) == 2
    assert books.told[1].startswith(f"{LedgerWriter.MAX_WAITING + 10} lines of the ledger")


def test_run_is_taken_until_it_is_let_go(tmp_path):
    """
    A ledger that is being written can't be opened again, not even after its last line, until
    its writer lets go of it.
    """
    path = tmp_path / "ledger.jsonl"
    assert not is_taken(path)
    books = Books(tmp_path)
    with pytest.raises(RunTakenError, match="another SLA_RUN_ID or run_dir"):
        RunLedger(path, say)
    books.ledger.close()
    assert is_taken(path)
    books.ledger.let_go()

    assert not is_taken(path)
    Books(tmp_path).close()


def test_late_file_that_another_job_has_taken_meanwhile_stays_its_own(tmp_path):
    """
    When another job makes the ledger first, ours writes nothing into it.
    """
    obstacle = tmp_path / "run"
    obstacle.write_text("in the way")
    ours = Books(obstacle)
    ours.journal.note("verdict", "ours")
    obstacle.unlink()
    obstacle.mkdir()
    theirs = Books(obstacle)
    ours.close()
    theirs.journal.note("verdict", "theirs")
    theirs.close()

    assert theirs.messages("verdict") == ["theirs"]
    assert "1 lines of the ledger" in ours.told[-1]


def test_nobody_waits_for_a_reader_of_standard_error(monkeypatch, tmp_path):
    """
    Telling people never waits: when the pipe is full the line is left out.
    """
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.write(write, b"x" * 4096)
    with os.fdopen(write, "w") as full:
        monkeypatch.setattr("sys.stderr", full)
        say("nobody reads this")
        os.read(read, 1 << 20)
        say("somebody reads this")
        rest = os.read(read, 1 << 20)
    os.close(read)

    assert rest == b"[sla] somebody reads this\n"
