"""Meetings of real ranks through their monitor: whole, in time, and named who is missing."""

from pathlib import Path

import pytest

from slav1.ledger import read_ledger

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

HEAD = """
import os, sys, threading, time
sys.path.insert(0, os.environ["TEST_TOOLS"])
from _trainee import join_run, say, train
from slav1.checkpoint.peers import PeersMissingError

session = join_run()
peers, rank = session.peers, session.rank


def failed(topic, limit_s):
    started_s = time.monotonic()
    try:
        peers.gather(topic, rank, limit_s=limit_s)
    except PeersMissingError as error:
        quick = "at once" if time.monotonic() - started_s < 5 else "late"
        return f"{error.arrived} {error.missing} {quick}: {error}"
    return "met"
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    tools = str(Path(__file__).parent)
    return {"TEST_TOOLS": tools, "TEST_RUN_DIR": str(tmp_path / "runs")}


def test_ranks_meet_beside_their_training(launch, env, tmp_path):
    """
    Values of every size reach all ranks in rank order, from a second thread too, while the
    training thread asks for memories; a rank that comes too late fails like those that
    waited for it, and one that has left is not waited for. The ledger says so.
    """
    ended = launch(
        HEAD
        + """
sizes = [10, 40_000, 1_500_000]
for size in sizes:
    met = peers.gather("big", {"from": rank, "data": bytes([rank]) * size}, limit_s=20)
    assert [each["from"] for each in met] == [0, 1], met
    assert [each["data"] for each in met] == [bytes([r]) * size for r in (0, 1)]

seen = []
def save():
    for turn in range(40):
        seen.append(peers.gather("turn", [turn, rank], limit_s=20))

thread = threading.Thread(target=save)
thread.start()
states = 0
step = 0
while thread.is_alive() or step < 10:
    train(session, num_steps=1, first_step=step, step_s=0.005)
    states += session.ask_state() is not None
    step += 1
thread.join()
assert seen == [[[turn, 0], [turn, 1]] for turn in range(40)], seen
assert states == step, (states, step)

if rank == 1:
    time.sleep(1.0)
say("late", failed("checkpoint", 0.4))
assert peers.gather("after", rank, limit_s=20) == [0, 1]
if rank == 1:
    peers.record("checkpoint_committed", "Kept.", step=3, rule="ckpt_success", path="/x")
    session.leave("finished")
else:
    say("left", failed("last", 60))
    session.leave("finished")
    say("gone", failed("last", 60))
""",
        num_ranks=2,
        env=env,
        timeout_s=60,
    )

    assert ended.succeeded(), ended
    late = [ended.out[rank].split("late ")[1].splitlines()[0] for rank in (0, 1)]
    assert late[0] == late[1]
    assert late[0].startswith("(0,) (1,) at once: checkpoint entered by ranks [0], missing [1]")
    assert "left (0,) (1,) at once:" in ended.out[0]
    assert "rank 1 has left (finished)" in ended.out[0]
    assert "gone (0,) () at once:" in ended.out[0]
    assert "this rank has left the run" in ended.out[0]
    (ledger,) = (tmp_path / "runs").glob("*/ledger.jsonl")
    entries = read_ledger(ledger)
    told = [e.message for e in entries if e.kind == "notice" and "entered by" in (e.message or "")]
    assert [text.split(":")[0] for text in told] == [
        "checkpoint entered by ranks [0], missing [1]",
        "last entered by ranks [0], missing [1]",
    ]
    (kept,) = [entry for entry in entries if entry.kind == "checkpoint_committed"]
    assert (kept.rank, kept.step, kept.rule) == (1, 3, "ckpt_success")
    assert kept.evidence == {"path": "/x"}


def test_monitor_that_dies_lets_every_rank_out(launch, env):
    """
    When the monitor is killed while ranks wait in a meeting, all of them get out at once
    with an error that says so; later meetings fail at once as well, and training goes on.
    """
    ended = launch(
        HEAD
        + """
import signal
if rank == 0:
    pid = session._monitor._process.pid
    threading.Timer(0.5, os.kill, [pid, signal.SIGKILL]).start()
if rank == 2:
    time.sleep(1.5)
say("first", failed("checkpoint", 60))
say("second", failed("checkpoint", 60))
assert train(session, num_steps=3) is None
session.leave("finished")
""",
        num_ranks=3,
        env=env,
        timeout_s=60,
    )

    assert ended.succeeded(), ended
    for rank in range(3):
        for turn in ("first", "second"):
            assert f"{turn} ({rank},) () at once: " in ended.out[rank], ended
        assert "has ended" in ended.out[rank] or "no monitor" in ended.out[rank]
