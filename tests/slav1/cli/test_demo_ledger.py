"""Reading a ledger while it grows."""

from slav1.cli._demo_ledger import LedgerTail
from slav1.ledger import Entry

FIRST = Entry(time_ns=1, attempt=0, kind="start")
SECOND = Entry(time_ns=2, attempt=0, kind="end")


def test_a_ledger_that_is_not_there_yet_is_empty(tmp_path):
    """
    Before the file exists there is nothing to read, and no error.
    """
    assert LedgerTail(tmp_path / "ledger.jsonl").new_entries() == []


def test_each_line_is_handed_out_once_and_only_whole(tmp_path):
    """
    A half-written line waits until its end is there; no line comes twice.
    """
    path = tmp_path / "ledger.jsonl"
    tail = LedgerTail(path)
    half = len(SECOND.to_json()) // 2
    path.write_text(f"{FIRST.to_json()}\n{SECOND.to_json()[:half]}")
    before = tail.new_entries()

    with path.open("a") as file:
        file.write(f"{SECOND.to_json()[half:]}\n")

    assert before == [FIRST]
    assert tail.new_entries() == [SECOND]
    assert tail.new_entries() == []
    assert tail.entries == [FIRST, SECOND]
