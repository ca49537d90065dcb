"""``sla verdict``: the right run, all its attempts, and an honest exit status."""

import json
import os
from pathlib import Path

import pytest

from slav1.contract import Contract
from slav1.ledger import Entry, parse_ledger

CONTRACT = Contract.level("L1")


def counts(attempt: int = 0) -> list[Entry]:
    evidence = {"num_samples": 1000, "num_needed": 10}
    return [
        Entry(time_ns=1, attempt=attempt, kind="verdict", rule=rule, evidence=evidence)
        for rule in CONTRACT.rules
    ]


def breach(attempt: int = 0, **fields: object) -> Entry:
    return Entry(time_ns=1, attempt=attempt, kind="breach", rule="hang", rank=1, **fields)


def make_run(folder: Path, entries: list[Entry], written_s: int = 1000) -> Path:
    folder.mkdir(parents=True)
    (folder / "contract.yaml").write_text(CONTRACT.to_yaml())
    ledger = folder / "ledger.jsonl"
    ledger.write_text("".join(entry.to_json() + "\n" for entry in entries))
    os.utime(ledger, (written_s, written_s))
    return folder


def test_a_kept_contract_ends_with_0(sla, tmp_path):
    """
    A run without a breach ends with status 0 and names every clause.
    """
    result = sla("verdict", make_run(tmp_path / "run", counts()))

    assert result.status == 0
    for rule in [*CONTRACT.rules, "recovery_time"]:
        assert rule in result.out


def test_a_broken_contract_ends_with_3(sla, tmp_path):
    """
    A run with a breach ends with status 3 and says which clause and why.
    """
    run = make_run(tmp_path / "run", [breach(message="Rank 1 [hangs] in backward."), *counts()])

    result = sla("verdict", run)

    assert result.status == 3
    assert [line for line in result.out.splitlines() if "Rank 1 [hangs] in backward." in line]
    assert not [line for line in result.out.splitlines() if line != line.rstrip()]


def test_an_earlier_attempt_is_not_forgotten(sla, tmp_path):
    """
    A breach of the first attempt still counts after a quiet second one.
    """
    run = make_run(tmp_path / "run", [breach(attempt=0), *counts(attempt=1)])

    assert sla("verdict", run).status == 3


def test_json_has_the_form_of_the_ledger(sla, tmp_path):
    """
    As JSON each clause is one line that reads as a ledger line, outcome in its evidence.
    """
    result = sla("verdict", make_run(tmp_path / "run", [breach(step=4), *counts()]), "--json")

    entries, num_unreadable = parse_ledger(result.out.encode())
    outcomes = {entry.rule: entry.evidence["outcome"] for entry in entries}
    assert (result.status, num_unreadable) == (3, 0)
    assert outcomes.pop("hang") == "breached"
    assert outcomes.pop("sync_outlier") == outcomes.pop("recovery_time") == "not exercised"
    assert set(outcomes.values()) == {"met"}
    assert {json.loads(line)["kind"] for line in result.out.splitlines()} == {"verdict"}


def test_the_newest_run_of_a_folder_is_meant(sla, tmp_path):
    """
    Given the folder that holds runs, the one whose ledger was written last is judged,
    and it is named.
    """
    make_run(tmp_path / "b-old", [breach(), *counts()], written_s=1000)
    newest = make_run(tmp_path / "a-new", counts(), written_s=2000)
    (tmp_path / "c-no-run").mkdir()

    result = sla("verdict", tmp_path)

    assert result.status == 0
    assert str(newest) in result.err


def test_a_cut_ledger_is_insufficient_data_and_no_breach(sla, tmp_path):
    """
    A ledger cut inside a line is read up to there, the loss is told, and nothing is
    claimed that it no longer proves.
    """
    start = Entry(time_ns=1, attempt=0, kind="start")
    run = make_run(tmp_path / "run", [start, *counts()])
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[: len(start.to_json()) + 100])

    result = sla("verdict", run)

    assert result.status == 0
    assert "insufficient data" in result.out
    assert " met " not in result.out
    assert "1 line(s) do not read" in result.err


@pytest.mark.parametrize("left", [b"", b"\0" * 500, b"no\nledger\n"])
def test_nothing_is_no_verdict(sla, tmp_path, left):
    """
    A ledger of which no line reads is a mistake, and never a contract that was kept.
    """
    run = make_run(tmp_path / "run", counts())
    (run / "ledger.jsonl").write_bytes(left)

    result = sla("verdict", run)

    assert (result.status, result.out) == (2, "")
    assert "holds no line that reads" in result.err


def test_another_contract_can_judge(sla, tmp_path):
    """
    A contract given by name is used in place of the run's own, also if that is missing.
    """
    run = make_run(tmp_path / "run", counts())
    (run / "contract.yaml").unlink()
    other = tmp_path / "other.yaml"
    other.write_text("level: L3\n")

    without, given = sla("verdict", run), sla("verdict", run, "--contract", other)

    assert without.status == 2
    assert "contract.yaml" in without.err
    assert "--contract" in without.err
    assert given.status == 0


@pytest.mark.parametrize("text", ["", "level: L7"])
def test_a_bad_contract_is_a_mistake_not_a_breach(sla, tmp_path, text):
    """
    A contract that can't be read ends with status 2 and one line, never with a verdict.
    """
    bad = tmp_path / "bad.yaml"
    bad.write_text(text)

    result = sla("verdict", make_run(tmp_path / "run", counts()), "--contract", bad)

    assert (result.status, result.out) == (2, "")
    assert result.err.count("\n") == 1


def test_messages_can_not_steer_the_terminal(sla, tmp_path):
    """
    Control characters in a message of the ledger are not sent to the terminal.
    """
    run = make_run(tmp_path / "run", [breach(message="\x1b[2Jgone\x07"), *counts()])

    assert "\x1b" not in sla("verdict", run).out
    assert "\x07" not in sla("verdict", run).out
