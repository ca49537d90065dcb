"""The folder of a run: names, attempts, and directories that can't be used."""

import os
import re
from pathlib import Path

import pytest

from slav1.contract import Contract
from slav1.ledger import Entry, LedgerWriter
from slav1.session.run_folder import (
    RunDirectoryError,
    choose_run_id,
    open_run_folder,
    save_contract,
)
from slav1.session.ticket import Ticket


def write_attempt(folder: Path, attempt: int) -> None:
    ledger = LedgerWriter(folder / "ledger.jsonl", on_trouble=print)
    ledger.write(Entry(time_ns=1, attempt=attempt, kind="start"))
    ledger.close()


def test_given_name_wins_and_stays_inside_the_directory():
    """
    SLA_RUN_ID names the run; what would lead out of the run directory is replaced.
    """
    assert choose_run_id({"SLA_RUN_ID": "my run/../x"}, 0) == "my_run_.._x"
    assert choose_run_id({"SLA_RUN_ID": "night", "TORCHELASTIC_RUN_ID": "none"}, 2) == "night-fit3"


@pytest.mark.parametrize("name", ["..", ".", "../..", "a/../.."])
def test_name_never_leads_out_of_the_directory(tmp_path, name):
    """
    No name of a run makes a folder anywhere else than below the run directory.
    """
    run_dir = tmp_path / "runs"
    folder, _ = open_run_folder(run_dir, choose_run_id({"SLA_RUN_ID": name}, 0))

    assert folder.resolve().parent == run_dir.resolve()


def test_runs_of_one_second_differ():
    """
    Two runs without a name that start in the same second have different folders.
    """
    names = {choose_run_id({}, 0) for _ in range(50)}

    assert len(names) == 50
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", name) for name in names)


def test_restart_by_an_elastic_launcher_keeps_the_name():
    """
    Under an elastic launcher the name is that of the launcher's process, which outlives its
    workers.
    """
    name = choose_run_id({"TORCHELASTIC_RUN_ID": "none"}, 0)

    assert name == choose_run_id({"TORCHELASTIC_RUN_ID": "none"}, 0)
    assert name.endswith(f"-elastic{os.getppid()}")


def test_attempts_are_counted_from_the_ledger(tmp_path):
    """
    A run that is opened again is the attempt after the last one in its ledger, or the one
    that the launcher counts, whichever is later.
    """
    folder, attempt = open_run_folder(tmp_path, "run")
    assert attempt == 0
    write_attempt(folder, 0)
    write_attempt(folder, 1)

    assert open_run_folder(tmp_path, "run")[1] == 2
    assert open_run_folder(tmp_path, "run", num_restarts=1)[1] == 2
    assert open_run_folder(tmp_path, "run", num_restarts=5)[1] == 5
    assert sorted(path.name for path in folder.iterdir()) == ["ledger.jsonl"]


def test_what_an_earlier_attempt_left_is_put_aside(tmp_path):
    """
    Rings and stacks of the attempt before are moved into a folder of its own; the ledger and
    files of others stay where they are.
    """
    folder, _ = open_run_folder(tmp_path, "run")
    write_attempt(folder, 0)
    for name in ("ring-0.bin", "ring-1.bin", "stacks-0-1.txt", "mine.txt"):
        (folder / name).touch()
    open_run_folder(tmp_path, "run")

    aside = sorted(path.name for path in (folder / "attempt-0").iterdir())
    assert aside == ["ring-0.bin", "ring-1.bin", "stacks-0-1.txt"]
    assert {path.name for path in folder.iterdir()} == {"attempt-0", "ledger.jsonl", "mine.txt"}


@pytest.mark.parametrize("obstacle", ["file", "ledger"])
def test_directory_that_cannot_be_used_says_what_to_do(tmp_path, obstacle):
    """
    A run directory that is a file, or whose ledger is a folder, is refused with its name,
    the reason, and where to set another one.
    """
    run_dir = tmp_path / "runs"
    if obstacle == "file":
        run_dir.touch()
    else:
        (run_dir / "run" / "ledger.jsonl").mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=r"run_dir .*runs can't be used: .*SLA_RUN_DIR"):
        open_run_folder(run_dir, "run")


def test_contract_is_written_whole_or_not_at_all(tmp_path):
    """
    The contract in force reads back as it was; where it can't be written nothing is left.
    """
    contract = Contract.level("L2").override(hang={"limit_s": 7.0})

    assert save_contract(tmp_path, contract)
    assert Contract.load(tmp_path / "contract.yaml").to_dict() == contract.to_dict()
    assert not save_contract(tmp_path / "nowhere", contract)
    assert [path.name for path in tmp_path.iterdir()] == ["contract.yaml"]


def test_ticket_survives_every_store():
    """
    A ticket is plain text for a store, and reads back as it was, infinite limits included;
    anything else is refused with what to check.
    """
    ticket = Ticket(run_folder="/runs/é", contract={"limit": float("inf")}, hosts=["a"], port=7)

    assert ticket.to_bytes().decode("ascii")
    assert Ticket.from_bytes(ticket.to_bytes()) == ticket
    for spoilt in (b"", b"{}", b"no ticket", ticket.to_bytes()[:-8]):
        with pytest.raises(ValueError, match="All nodes need the same version"):
            Ticket.from_bytes(spoilt)
