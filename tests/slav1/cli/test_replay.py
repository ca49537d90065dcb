"""``sla replay``: a series or a run's rings through the rules, with an honest status."""

import math
from pathlib import Path

import pytest

from slav1.breach import Breach
from slav1.cli._errors import CommandLineError
from slav1.cli._run_folder import events_of
from slav1.contract import Contract
from slav1.coordinator.journal import Journal
from slav1.coordinator.run_ledger import RunLedger
from slav1.ledger import Entry, parse_ledger
from slav1.policy import judge
from slav1.recorder import layout
from slav1.recorder.layout import RECORD, Word
from slav1.sample import Round, Sample


def write_ring(
    folder: Path,
    rank: int,
    losses: dict[int, float] | list[tuple[int, float]],
    version: int = layout.VERSION,
) -> Path:
    """Writes a ring as a monitor leaves it, one step for each loss."""
    losses = list(losses.items()) if isinstance(losses, dict) else losses
    folder.mkdir(parents=True, exist_ok=True)
    words = [0] * layout.NUM_WORDS
    words[Word.MAGIC], words[Word.VERSION] = layout.MAGIC, version
    words[Word.RANK], words[Word.NUM_SLOTS], words[Word.NUM_RECORDS] = rank, 64, len(losses)
    data = b"".join(word.to_bytes(8, "little") for word in words)
    for number, (step, loss) in enumerate(losses):
        not_finite = 0 if math.isfinite(loss) else layout.LOSS_NON_FINITE
        flags = layout.HAS_LOSS | not_finite
        times = [0.1] + [math.nan] * 8
        data += RECORD.pack(number, step, step * 10**8, loss, math.nan, *times, step, flags)
    path = folder / f"ring-{rank}.bin"
    path.write_bytes(data.ljust(layout.block_bytes(64), b"\0"))
    return path


def make_run(folder: Path, rings: dict[int, dict[int, float]]) -> Path:
    for rank, losses in rings.items():
        write_ring(folder, rank, losses)
    (folder / "contract.yaml").write_text(Contract.level("L1").to_yaml())
    (folder / "ledger.jsonl").write_text("")
    return folder


def healthy(num_steps: int) -> dict[int, float]:
    return {step: 2.0 + 0.01 * (step * 7 % 5) for step in range(num_steps)}


def write_csv(path: Path, losses: list[float]) -> Path:
    rows = [f"{step},{loss}" for step, loss in enumerate(losses)]
    path.write_text("\n".join(["step,loss", *rows]) + "\n")
    return path


def test_rings_are_shown_step_by_step(tmp_path):
    """
    Each rank's sample of a step comes in order of rank, then the round; a step that a
    rank lacks has no round.
    """
    write_ring(tmp_path, 0, {5: 1.0, 6: 2.0})
    write_ring(tmp_path, 1, {6: 3.0, 7: 4.0})

    events = list(events_of(tmp_path))

    seen = [(event.step, "round" if isinstance(event, Round) else event.rank) for event in events]
    assert seen == [(5, 0), (6, 0), (6, 1), (6, "round"), (7, 1)]
    (round_of_6,) = [event for event in events if isinstance(event, Round)]
    assert [sample.loss for sample in round_of_6.samples] == [2.0, 3.0]
    assert all(isinstance(event, Sample | Round) for event in events)


def test_a_quiet_run_ends_with_0(sla, tmp_path):
    """
    Rings without anything amiss end with status 0 and no event.
    """
    run = make_run(tmp_path / "run", {0: healthy(50), 1: healthy(50)})

    result = sla("replay", run, "--json")

    assert (result.status, result.out) == (0, "")


def test_a_breach_in_the_rings_ends_with_3(sla, tmp_path):
    """
    A step that is not finite is found again in the rings, with rank and step, in the
    form of a ledger line.
    """
    broken = healthy(50) | {30: math.nan}
    run = make_run(tmp_path / "run", {0: healthy(50), 1: broken})

    result = sla("replay", run, "--json")

    entries, num_unreadable = parse_ledger(result.out.encode())
    breaches = [entry for entry in entries if entry.kind == "breach"]
    assert (result.status, num_unreadable) == (3, 0)
    assert breaches[0].rule == "non_finite"
    assert (breaches[0].rank, breaches[0].step) == (1, 30)
    assert (breaches[0].mode, breaches[0].action) == ("enforce", "rollback")


def test_a_breach_is_printed_for_people(sla, tmp_path):
    """
    Without --json each event is a row with step, rank, rule and what would be done.
    """
    run = make_run(tmp_path / "run", {0: healthy(50) | {30: math.inf}})

    result = sla("replay", run)

    assert result.status == 3
    for part in ("30", "non_finite", "rollback"):
        assert part in result.out


def test_a_rule_that_is_off_finds_nothing(sla, tmp_path):
    """
    The contract decides what is looked at: a rule that is off raises no event.
    """
    run = make_run(tmp_path / "run", {0: healthy(50) | {30: math.nan}})
    contract = tmp_path / "quiet.yaml"
    contract.write_text(Contract.level("L1").override(mode="off").to_yaml())

    result = sla("replay", run, "--contract", contract)

    assert (result.status, result.out) == (0, "")


def test_rings_of_another_version_are_refused(sla, tmp_path):
    """
    A ring of another version, and a file that is none, end with status 2 by name.
    """
    run = make_run(tmp_path / "run", {0: healthy(5)})
    path = write_ring(run, 1, healthy(5), version=99)

    newer = sla("replay", run)
    path.write_bytes(b"nothing of ours")
    strange = sla("replay", run)

    assert (newer.status, strange.status) == (2, 2)
    assert "ring-1.bin" in newer.err
    assert "99" in newer.err
    assert "ring-1.bin" in strange.err
    assert newer.err.count("\n") == strange.err.count("\n") == 1


def test_a_run_without_rings_says_so(sla, tmp_path):
    """
    A run that kept no ring is no quiet run: status 2, and why.
    """
    run = make_run(tmp_path / "run", {0: healthy(5)})
    (run / "ring-0.bin").unlink()

    result = sla("replay", run)

    assert result.status == 2
    assert "ring-<rank>.bin" in result.err
    with pytest.raises(CommandLineError):
        list(events_of(run))


def test_a_quiet_series_ends_with_0(sla, tmp_path):
    """
    A CSV file of healthy losses ends with status 0 and no breach.
    """
    path = write_csv(tmp_path / "quiet.csv", list(healthy(300).values()))

    result = sla("replay", path, "--json")

    assert result.status == 0
    assert not [e for e in parse_ledger(result.out.encode())[0] if e.kind == "breach"]


def test_a_breach_in_a_series_ends_with_3(sla, tmp_path):
    """
    A CSV file with a loss that is not finite ends with status 3 and names its step.
    """
    losses = list(healthy(300).values())
    losses[250] = math.nan

    result = sla("replay", write_csv(tmp_path / "broken.csv", losses), "--json")

    breaches = [e for e in parse_ledger(result.out.encode())[0] if e.kind == "breach"]
    assert result.status == 3
    assert breaches[0].rule == "non_finite"
    assert breaches[0].step == 250


@pytest.mark.parametrize("text", ["", "step,los\n0,1\n", "step,loss\n0,high\n", "\x00\x01"])
def test_a_file_that_is_no_series_is_a_mistake(sla, tmp_path, text):
    """
    A file without the columns, or with a cell that is no number, ends with status 2 and
    one line that names the file.
    """
    path = tmp_path / "bad.csv"
    path.write_text(text)

    result = sla("replay", path)

    assert (result.status, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert str(path) in result.err


def test_a_series_is_judged_by_the_contract_given(sla, tmp_path):
    """
    A contract given by name decides for a series too; one that is bad is a mistake.
    """
    path = write_csv(tmp_path / "broken.csv", [2.0, math.nan, 2.0])
    quiet, bad = tmp_path / "quiet.yaml", tmp_path / "bad.yaml"
    quiet.write_text("level: L1\nmode: off\n")
    bad.write_text("level: L8\n")

    assert sla("replay", path, "--contract", quiet).status == 0
    assert sla("replay", path, "--contract", bad).status == 2


def test_what_limits_a_replay_is_said(sla, tmp_path):
    """
    Steps that fall back and a series that is too short for a rule are said on stderr, so
    that silence is not taken for health; a long series in order gets neither line.
    """
    short = tmp_path / "short.csv"
    short.write_text("step,loss\n" + "".join(f"{step},2.0\n" for step in (0, 1, 2, 1, 2, 3)))
    long = write_csv(tmp_path / "long.csv", list(healthy(3000).values()))

    assert "in 1 of 6 rows step is no higher" in sla("replay", str(short)).err
    assert "6 rows are fewer than" in sla("replay", str(short)).err
    assert "rows" not in sla("replay", str(long)).err


LEDGER = [
    {"kind": "start", "evidence": {"world_size": 2, "num_nodes": 1}},
    {"kind": "breach", "rule": "hang", "rank": 1, "step": 4, "mode": "enforce", "action": "stop"},
    {"kind": "breach", "rule": "straggler", "rank": 0, "step": 5, "mode": "observe"},
    {"kind": "decision", "rule": "non_finite", "step": 8, "action": "rollback"},
    {"kind": "breach", "rule": "hang", "rank": 0, "step": 9, "mode": "enforce", "action": "stop"},
    {"kind": "breach", "rule": "checkpoint", "rank": 0, "step": 9, "action": "rollback"},
]


def write_past(folder: Path) -> Path:
    """A run that left nothing but a ledger."""
    folder.mkdir()
    lines = [Entry(time_ns=5, attempt=0, **line).to_json() for line in LEDGER]
    (folder / "ledger.jsonl").write_text("\n".join(lines))
    return folder


def changes(entries: list[Entry]) -> list[tuple[object, ...]]:
    return [(e.rule, e.step, e.kind, e.evidence["before"]["action"], e.action) for e in entries]


def test_past_breaches_are_judged_by_another_contract(sla, tmp_path):
    """
    With a contract the breaches in a run's ledger are judged by its table: what was done and
    what would be, a rule that is off as a notice; rings are not needed for that.
    """
    run = write_past(tmp_path / "run")
    other = tmp_path / "other.yaml"
    other.write_text("level: L1\nrules: {hang: {action: restart}, straggler: {mode: off}}")

    result = sla("replay", run, "--contract", other, "--json")
    shown = sla("replay", run, "--contract", other)

    entries, num_unreadable = parse_ledger(result.out.encode())
    assert (result.status, num_unreadable) == (3, 0)
    assert changes(entries) == [
        ("hang", 4, "breach", "stop", "restart"),
        ("straggler", 5, "notice", None, "log"),
        ("hang", 9, "breach", "stop", "restart"),
    ]
    assert "hang       stop  restart" in shown.out
    assert "3 of 3 past breaches would be judged differently" in shown.err


def test_past_breaches_are_judged_though_a_ring_does_not_read(sla, tmp_path):
    """
    Rings that were written by another version hide what was measured, which is said, and not
    what the ledger tells.
    """
    run = write_past(tmp_path / "run")
    write_ring(run, 0, healthy(20), version=layout.VERSION + 1)
    (run / "contract.yaml").write_text("level: L1")

    result = sla("replay", run, "--contract", run / "contract.yaml")

    assert result.status == 3
    assert "3 past breaches" in result.err
    assert "ring-0.bin" in result.err and "is not known" in result.err
    assert sla("replay", run).status == 2


def test_by_the_same_contract_nothing_would_be_different(sla, tmp_path):
    """
    A run's own contract says of each past breach what it said then, also where a finding asked
    for another action than its rule's; one that asks for what no version knows is taken for one
    that asks for nothing.
    """
    run, contract = tmp_path / "run", Contract.level("L1")
    run.mkdir()
    own = run / "contract.yaml"
    own.write_text(contract.to_yaml())
    ledger = RunLedger(run / "ledger.jsonl", lambda _: None)
    for rank, action in enumerate(("skip_batches", None, "rollback")):
        rule = contract.rules["non_finite"]
        breach = Breach(
            rule=rule.name,
            rank=rank,
            step=5,
            statistic=math.nan,
            limit=None,
            unit="loss",
            action=action,
            message="Not finite.",
        )
        Journal(ledger, 0).breach(breach, rule, judge(breach, rule))
    ledger.close()
    ledger.let_go()

    assert "0 of 3 past breaches would be" in sla("replay", run, "--contract", own).err

    lines = (run / "ledger.jsonl").read_text().replace('"skip_batches"', '"frobnicate"')
    (run / "ledger.jsonl").write_text(lines)
    assert "1 of 3 past breaches would be" in sla("replay", run, "--contract", own).err


def test_breaches_of_the_ledger_are_pointed_at(sla, tmp_path):
    """
    Without a contract only the rings are looked at: that the ledger holds breaches, which may
    be about steps made again since, is said.
    """
    run = write_past(tmp_path / "run")
    (run / "contract.yaml").write_text("level: L1")
    write_ring(run, 0, healthy(20))

    assert "ledger holds 4 breaches" in sla("replay", run).err
    assert sla("replay", run, "--json").err == ""


@pytest.mark.slow
def test_past_breaches_are_judged_by_another_policy(sla, tmp_path):
    """
    A contract's policy is asked about each past breach, with what had happened until then,
    and about what the rings show, with what was measured; without a contract it is the copy
    that the run kept which is asked.
    """
    policy = tmp_path / "mine.rego"
    policy.write_text(
        "package slav1.decision\n"
        'action := "restart" if { input.breach.rule == "hang"; input.history.rollbacks > 0 }\n'
        'action := "stop" if {\n input.rule.name == "non_finite"\n'
        " input.metrics.step_time_s == 0.1\n}\n"
    )
    other = tmp_path / "other.yaml"
    other.write_text("level: L1\npolicy: mine.rego")
    run = write_past(tmp_path / "run")
    write_ring(run, 0, healthy(50) | {30: math.nan})
    write_ring(run, 1, healthy(50))

    entries, _ = parse_ledger(sla("replay", run, "--contract", other, "--json").out.encode())

    past = [entry for entry in entries if entry.time_ns]
    assert [(entry.step, entry.action) for entry in past] == [
        (4, "stop"),
        (5, "log"),
        (9, "restart"),
    ]
    assert past[2].evidence["policy"]["said"] == "restart"
    found = [entry for entry in entries if entry.rule == "non_finite" and entry.kind == "breach"]
    assert [(entry.rank, entry.step, entry.action) for entry in found][:1] == [(0, 30, "stop")]

    (run / "contract.yaml").write_text("level: L1\npolicy: /nowhere/mine.rego")
    (run / "policy.rego").write_text(
        'package slav1.decision\naction := "stop" if input.breach.rule == "non_finite"'
    )
    kept, _ = parse_ledger(sla("replay", run, "--json").out.encode())
    assert {entry.action for entry in kept if entry.kind == "breach"} == {"stop"}


@pytest.mark.slow
def test_a_policy_is_told_what_was_so_when_a_breach_was_found(sla, tmp_path):
    """
    Of a step that was made again after a rollback, or in another start, the policy sees what
    was measured then; of one that no ring has any more nothing, and not another one's. Rollbacks
    of earlier starts count, and the job is known.
    """
    (tmp_path / "mine.rego").write_text(
        "package slav1.decision\n"
        'action := "stop" if input.metrics.loss > 5\n'
        'action := "restart" if { input.metrics.loss < 1; input.history.rollbacks == 1 }\n'
        'action := "snapshot" if { not input.metrics.loss; input.history.rollbacks == 1\n'
        ' input.metadata.run_id == "run"; input.metadata.world_size == 2 }\n'
    )
    other = tmp_path / "other.yaml"
    other.write_text("level: L1\npolicy: mine.rego")
    run = tmp_path / "run"
    again = [(4, 2.0), (5, 9.0), (6, 2.0), (7, 2.0), (5, 0.5), (6, 2.0)]
    write_ring(run / "attempt-0", 1, again)
    write_ring(run, 0, {5: 7.0})
    breach = {"kind": "breach", "rule": "hang", "mode": "enforce", "action": "stop"}
    lines = [
        (0, LEDGER[0]),
        (0, {**breach, "rank": 1, "step": 5}),
        (0, {"kind": "decision", "rule": "hang", "step": 7, "action": "rollback"}),
        (0, {"kind": "restored", "step": 4, "evidence": {"how": "rollback"}}),
        (0, {**breach, "rank": 1, "step": 5}),
        (1, LEDGER[0]),
        (1, {**breach, "rank": None, "step": 5}),
        (1, {**breach, "rank": None, "step": 99}),
    ]
    (run / "ledger.jsonl").write_text(
        "\n".join(Entry(time_ns=5, attempt=attempt, **line).to_json() for attempt, line in lines)
    )

    entries, _ = parse_ledger(sla("replay", run, "--contract", other, "--json").out.encode())

    past = [(entry.step, entry.action) for entry in entries if entry.time_ns]
    assert past == [(5, "stop"), (5, "restart"), (5, "stop"), (99, "snapshot")]


def test_a_policy_that_cant_be_used_is_a_mistake_in_use(sla, tmp_path):
    """
    A dry run with a policy that is not there says so in one line, with exit status 2.
    """
    run = write_past(tmp_path / "run")
    other = tmp_path / "other.yaml"
    other.write_text("level: L1\npolicy: mine.rego")

    result = sla("replay", run, "--contract", other)

    assert result.status == 2
    assert "mine.rego can't be read: No such file" in result.err
    assert result.err.count("\n") == 1
