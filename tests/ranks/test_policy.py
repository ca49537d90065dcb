"""A policy on real ranks: it changes what is done, and never holds anything up for long."""

import json
import socket
from pathlib import Path

import pytest

from slav1.ledger import read_ledger

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

SCRIPT = """
import math, os, sys, time
sys.path.insert(0, os.environ["TEST_TOOLS"])
from _trainee import join_run, say, train
from slav1.session.session import SessionError

try:
    session = join_run(can_roll_back=True)
except SessionError as error:
    say("refused:", error)
    sys.exit(4)

def loss_at(step):
    if step == 20:
        say("bad at", time.time())
    return math.nan if step == 20 and session.rank == 0 else 1.0

step = train(session, num_steps=1000, step_s=0.01, loss_at=loss_at)
say("stopped at", time.time(), step)
session.leave("finished")
"""
DEADLINE_S = 0.6


def start(launch, tmp_path, policy, **clauses):
    env = {
        "TEST_TOOLS": str(Path(__file__).parent),
        "TEST_RUN_DIR": str(tmp_path / "runs"),
        "SLA_RUN_ID": "run",
        "TEST_CONTRACT": json.dumps({"policy": policy, **clauses}),
    }
    return launch(SCRIPT, num_ranks=2, env=env, timeout_s=60.0)


def said(ended, rank, words):
    """What follows these words in a rank's output."""
    (line,) = [line for line in ended.out[rank].splitlines() if line.startswith(words)]
    return line[len(words) :].split()


def test_a_policy_changes_what_all_ranks_do(launch, tmp_path):
    """
    Where the table would go back, the policy stops: all ranks at the end of one step, and
    ledger and run folder tell who decided.
    """
    path = tmp_path / "mine.rego"
    path.write_text(
        "package slav1.decision\n"
        'action := "stop" if { input.breach.rule == "non_finite"; input.metadata.world_size == 2 }'
    )
    ended = start(launch, tmp_path, str(path))

    assert ended.exit_codes == {0: 0, 1: 0}
    steps = {said(ended, rank, "stopped at")[1] for rank in (0, 1)}
    assert len(steps) == 1 and steps != {"None"}
    entries = read_ledger(tmp_path / "runs/run/ledger.jsonl")
    (breach,) = [entry for entry in entries if entry.kind == "breach"]
    (decision,) = [entry for entry in entries if entry.kind == "decision"]
    assert (breach.action, decision.action) == ("stop", "stop")
    assert breach.evidence["policy"]["said"] == "stop"
    assert breach.evidence["policy"]["table"] == "rollback"
    (told,) = [entry for entry in entries if "is asked about breaches" in (entry.message or "")]
    assert told.evidence["sha256"]
    assert (tmp_path / "runs/run/policy.rego").read_text() == path.read_text()


def test_a_server_that_never_answers_holds_nothing_up(launch, tmp_path):
    """
    A server that takes questions and never answers delays a stop by the policy's deadline
    and not much more; the ranks make steps meanwhile, and the ledger says what happened.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        policy = {"url": url, "deadline_ms": int(DEADLINE_S * 1000)}
        ended = start(launch, tmp_path, policy, non_finite={"action": "stop"})

    assert ended.exit_codes == {0: 0, 1: 0}
    bad_s = float(said(ended, 0, "bad at")[0])
    stops = [said(ended, rank, "stopped at") for rank in (0, 1)]
    assert stops[0][1] == stops[1][1]
    # The server's own limit is a little under the deadline.
    assert int(stops[0][1]) > 20 + 10
    assert 0.7 * DEADLINE_S < max(float(stop[0]) for stop in stops) - bad_s < DEADLINE_S + 3.0
    entries = read_ledger(tmp_path / "runs/run/ledger.jsonl")
    assert [entry.action for entry in entries if entry.kind == "decision"] == ["stop"]
    told = [entry.message for entry in entries if "table decides" in (entry.message or "")]
    assert len(told) == 1


def test_a_policy_that_grants_on_nothing_starts_no_run(launch, tmp_path):
    """
    A policy that must not be used is an error on all ranks before the first step.
    """
    path = tmp_path / "mine.rego"
    path.write_text("package training.autoscale\ndefault allow := true")
    ended = start(launch, tmp_path, str(path))

    assert ended.exit_codes == {0: 4, 1: 4}
    for rank in (0, 1):
        assert "mine.rego" in ended.out[rank]
        assert "empty input" in ended.out[rank]
