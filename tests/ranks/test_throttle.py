"""From failing saves of real ranks to slower background writers on all of them, and back."""

from pathlib import Path

import pytest

from slav1.contract import Contract
from slav1.ledger import read_ledger
from slav1.verdict import Outcome, verdicts

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

SCRIPT = """
import os, sys, time
sys.path.insert(0, os.environ["TEST_TOOLS"])
from pathlib import Path
from _trainee import join_run, train
from slav1.checkpoint import SaveFacts, SaveFailedError, Shelf
from slav1.contract.settings import CheckpointSettings

session = join_run()
peers, rank = session.peers, session.rank
folder = Path(os.environ["TEST_RUN_DIR"]) / "checkpoints"
shelf = Shelf(settings=CheckpointSettings(limit_s=20.0), peers=peers,
              run_folder=session.run_folder, attempt=0, run="job")
train(session, num_steps=3)


def save(step, is_full=False):
    def write(path):
        if is_full:
            raise OSError(28, "No space left on device")
        if rank == 0:
            path.write_bytes(bytes([step]) * 9000)
    facts = SaveFacts(step=step, host="test", kind="replicated")
    shelf.save_in_background(folder / f"{step}.pt", write, facts)
    try:
        shelf.drain(20.0)
    except SaveFailedError:
        assert is_full


def wait_for(percent):
    deadline_s = time.monotonic() + 20
    while peers.io_percent != percent:
        assert time.monotonic() < deadline_s, peers.io_percent
        time.sleep(0.01)


assert peers.io_percent == 100
for step in range(5):
    save(step, is_full=True)
wait_for(60)
for step in range(10, 20):
    save(step)
wait_for(100)
train(session, num_steps=2, first_step=3)
session.leave("finished")
"""


def test_full_disk_slows_background_saves_until_they_succeed(launch, tmp_path):
    """
    Five saves that fail on all ranks slow the background writers of all to 60 %, training goes
    on meanwhile, and ten good ones let them go. Ledger and verdict say so.
    """
    runs = tmp_path / "runs"
    env = {"TEST_TOOLS": str(Path(__file__).parent), "TEST_RUN_DIR": str(runs)}

    ended = launch(SCRIPT, env=env, num_ranks=2)

    assert ended.succeeded(), ended
    (ledger,) = runs.glob("*/ledger.jsonl")
    entries = read_ledger(ledger)
    ours = [entry for entry in entries if entry.rule == "ckpt_success"]
    kinds = [entry.kind for entry in ours if entry.kind not in ("verdict", "notice")]
    assert kinds == ["incident_begin", "breach", "decision", "action", "incident_end", "decision"]
    told = next(entry for entry in ours if entry.kind == "action")
    assert told.evidence["percent"] == 60 and told.evidence["means"] in told.message
    clauses = {clause.rule: clause for clause in verdicts(entries, Contract.level("L1"))}
    assert clauses["ckpt_success"].outcome is Outcome.BREACHED
    assert "5 of 15 saves failed" in clauses["ckpt_success"].message
