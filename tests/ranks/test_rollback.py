"""Going back on real ranks: the same step on all of them, again and again, within limits."""

import json
from pathlib import Path
from typing import Any

import pytest

from slav1.ledger import Entry, read_ledger

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

SCRIPT = """
import json, math, os, sys, time
sys.path.insert(0, os.environ["TEST_TOOLS"])
from _trainee import PHASES, join_run, say
from slav1.decision import Action
from slav1.phase import Phase
from slav1.recorder import layout

session = join_run(can_roll_back=True, meeting=os.environ["MEETING"])
rank, recorder = session.rank, session.recorder
bad = json.loads(os.environ["BAD"])
saved, skipped, step = {-1: None}, set(), int(os.environ.get("FIRST", "0"))
if step:
    recorder.starts_at(step)
while step < int(os.environ["NUM_STEPS"]):
    for phase in PHASES:
        recorder.enter(int(phase))
        time.sleep(0.001)
    is_bad = step in bad[rank] and step not in skipped
    flags = layout.HAS_LOSS | (layout.LOSS_NON_FINITE if is_bad else 0)
    loss = math.nan if is_bad else 1.0
    recorder.publish(recorder.end_step(step, loss=loss, batch=step, flags=flags))
    if step % 10 == 9 and not is_bad:
        saved[step] = session.ask_state(step)
        assert saved[step] is not None
    action = session.at_boundary(step)
    if action is None:
        step += 1
        continue
    decision = session.decision()
    session.confirm(step)
    assert session.decision() == decision and action is decision.action
    say(json.dumps([step, action.name, decision.number, decision.rule, decision.rank,
                    decision.step, decision.onset_step, decision.alarm_step, decision.reason]))
    if action is Action.STOP:
        break
    recorder.enter(int(Phase.CHECKPOINT))
    # One rank is back long before the other, and takes steps meanwhile.
    time.sleep(0.1 * rank)
    to_step = max(each for each in saved if each < decision.onset_step)
    skipped |= set(range(decision.onset_step, decision.alarm_step + 1))
    session.rolled_back(to_step, saved[to_step] if rank == 0 else None)
    step = to_step + 1
session.leave("finished")
"""


def acted(ended: Any) -> list[list[list[Any]]]:
    """What each rank was told to do, one list a rank."""
    return [
        [json.loads(line) for line in ended.out[rank].splitlines() if line.startswith("[")]
        for rank in (0, 1)
    ]


def of_kind(entries: list[Entry], kind: str) -> list[Entry]:
    return [entry for entry in entries if entry.kind == kind]


def test_ranks_go_back_together_until_the_limit(launch, tmp_path):
    """
    Every breach sends all ranks back at the end of one step, each knows what for, training
    goes on from the checkpoint, and a second breach is found again, also one that comes
    while the other rank is still on its way back. The fourth stops training instead, and
    so does the first of a later start of the same run. The ledger tells it all.
    """
    env = {
        "TEST_TOOLS": str(Path(__file__).parent),
        "TEST_RUN_DIR": str(tmp_path),
        "SLA_RUN_ID": "run",
        "MEETING": "first",
        "NUM_STEPS": "400",
        # Step 15 of rank 0 comes while rank 1 is on its way back from the breach at 14.
        "BAD": json.dumps([[15, 47], [14, 151]]),
    }
    first = launch(SCRIPT, num_ranks=2, env=env, timeout_s=60)
    assert first.succeeded(), first
    entries = read_ledger(tmp_path / "run" / "ledger.jsonl")
    again = launch(
        SCRIPT,
        num_ranks=2,
        env={**env, "MEETING": "second", "FIRST": "160", "BAD": "[[190], []]"},
        timeout_s=60,
    )
    assert again.succeeded(), again
    later = read_ledger(tmp_path / "run" / "ledger.jsonl")[len(entries) :]

    one, other = acted(first)
    assert one == other
    assert [(told[1], told[3], told[4], told[6], told[7]) for told in one] == [
        ("ROLLBACK", "non_finite", 1, 14, 14),
        ("ROLLBACK", "non_finite", 0, 15, 15),
        ("ROLLBACK", "non_finite", 0, 47, 47),
        ("STOP", "non_finite", 1, 151, 151),
    ]
    assert all(told[0] == told[5] for told in one)
    assert "rollback 4 within 1000 steps" in one[-1][-1]
    decisions = of_kind(entries, "decision")
    assert [entry.action for entry in decisions] == ["rollback"] * 3 + ["stop"]
    restored = of_kind(entries, "restored")
    assert [entry.step for entry in restored] == [9, 9, 39]
    assert [entry.evidence["from_step"] for entry in restored] == [told[0] for told in one[:3]]
    assert all(entry.evidence["rollback_s"] >= 0.1 for entry in restored)
    begun, over = (
        [entry for entry in of_kind(entries, kind) if entry.rule == "non_finite"]
        for kind in ("incident_begin", "incident_end")
    )
    assert len(begun) == len(over) >= 4
    # The incident of the last breach may still be open then, and is closed after it.
    (end,) = of_kind(entries, "end")
    assert "stopped training at step" in (end.message or "")
    assert not [e for e in of_kind(entries, "notice") if "not compared" in (e.message or "")]
    ((stop,), (other_stop,)) = acted(again)
    assert stop == other_stop and stop[1] == "STOP"
    assert "rollback 4 within 1000 steps" in stop[-1]
    assert [entry.action for entry in of_kind(later, "decision")] == ["stop"]
