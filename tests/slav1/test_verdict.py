"""The verdict: what may be said about each clause, and never more than that."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slav1.contract import Contract
from slav1.ledger import Entry, parse_ledger
from slav1.verdict import Clause, Outcome, is_kept, verdicts

CONTRACT = Contract.level("L1")
RULES = sorted(CONTRACT.rules)


def line(kind: str, rule: str | None = None, attempt: int = 0, **fields: object) -> Entry:
    return Entry(time_ns=0, attempt=attempt, kind=kind, rule=rule, **fields)


def count(rule: str, num_samples: object, num_needed: object = 10, attempt: int = 0) -> Entry:
    evidence = {"num_samples": num_samples, "num_needed": num_needed}
    return line("verdict", rule, attempt, evidence=evidence)


def verdict(rule: str, *entries: Entry, contract: Contract = CONTRACT) -> Clause:
    (clause,) = [clause for clause in verdicts(entries, contract) if clause.rule == rule]
    return clause


FULL = [line("start"), *(count(rule, 1000) for rule in RULES), line("end")]


def test_a_full_quiet_run_keeps_every_clause():
    """
    A run that counted enough samples and told of no breach met every clause that is on.
    """
    clauses = {clause.rule: clause.outcome for clause in verdicts(FULL, CONTRACT)}

    assert clauses.pop("sync_outlier") is Outcome.NOT_EXERCISED
    assert clauses.pop("recovery_time") is Outcome.NOT_EXERCISED
    assert set(clauses.values()) == {Outcome.MET}
    assert is_kept(verdicts(FULL, CONTRACT))


@pytest.mark.parametrize("rule", RULES)
def test_a_breach_breaks_its_own_clause_only(rule):
    """
    A breach breaks the clause of its rule, also of one that only observes or is off,
    and no other clause.
    """
    breach = line("breach", rule, rank=1, step=7, message="Too much.")

    clauses = verdicts([*FULL, breach], CONTRACT)

    broken = [clause for clause in clauses if clause.outcome is Outcome.BREACHED]
    assert [clause.rule for clause in broken] == [rule]
    assert broken[0].first_breach == breach
    assert "Too much." in broken[0].message
    assert "rank 1, step 7" in broken[0].message
    assert not is_kept(clauses)


def test_a_breach_counts_without_any_count_of_samples():
    """
    A run that was cut after a breach is still known to have broken the clause.
    """
    clause = verdict("hang", line("start"), line("breach", "hang", rank=0))

    assert (clause.outcome, clause.num_breaches) == (Outcome.BREACHED, 1)


def test_the_two_lines_of_one_incident_are_one_breach():
    """
    An incident's begin and its breach count once; the begin alone counts too.
    """
    begin, breach = line("incident_begin", "hang"), line("breach", "hang")

    assert verdict("hang", begin, breach).num_breaches == 1
    assert verdict("hang", begin).outcome is Outcome.BREACHED


@pytest.mark.parametrize(
    "kind",
    ["notice", "incident_end", "decision", "action", "first_exception", "checkpoint_rejected"],
)
def test_other_lines_are_no_breach(kind):
    """
    Notices, ends of incidents, decisions and actions never break a clause by themselves.
    """
    assert verdict("straggler", *FULL, line(kind, "straggler")).outcome is Outcome.MET


def test_a_run_without_counts_met_nothing():
    """
    A cut ledger, or a killed monitor, leaves insufficient data for every clause that is on.
    """
    for entries in ([], [line("start")], [line("start"), line("end")]):
        clauses = {clause.rule: clause.outcome for clause in verdicts(entries, CONTRACT)}
        assert clauses.pop("sync_outlier") is Outcome.NOT_EXERCISED
        assert clauses.pop("recovery_time") is Outcome.NOT_EXERCISED
        assert set(clauses.values()) == {Outcome.INSUFFICIENT_DATA}


@pytest.mark.parametrize(
    ("num_samples", "outcome"),
    [
        (0, Outcome.NOT_EXERCISED),
        (1, Outcome.INSUFFICIENT_DATA),
        (9, Outcome.INSUFFICIENT_DATA),
        (10, Outcome.MET),
    ],
)
def test_silence_means_something_only_after_enough_samples(num_samples, outcome):
    """
    Without a breach the clause is met from the number of samples its rule needs.
    """
    clause = verdict("straggler", count("straggler", num_samples))

    assert clause.outcome is outcome
    assert (clause.num_samples, clause.num_needed) == (num_samples, 10)


@pytest.mark.parametrize("damaged", [None, "1000", 10.5, [1000]])
def test_a_count_that_is_no_number_counts_for_nothing(damaged):
    """
    A damaged count is insufficient data, not a guess.
    """
    clause = verdict("straggler", count("straggler", damaged))

    assert clause.outcome is Outcome.INSUFFICIENT_DATA


def test_samples_of_two_attempts_do_not_add_up():
    """
    Two attempts that were each too short are too short together, since a rule begins
    anew at each; one that was long enough is enough.
    """
    short = [count("straggler", 6, attempt=0), count("straggler", 6, attempt=1)]
    long_then_short = [count("straggler", 20, attempt=0), count("straggler", 6, attempt=1)]

    assert verdict("straggler", *short).outcome is Outcome.INSUFFICIENT_DATA
    assert verdict("straggler", *long_then_short).outcome is Outcome.MET


def test_the_last_attempt_must_have_said_goodbye():
    """
    An attempt that was cut at the end leaves its clauses open, whatever came before.
    """
    entries = [count("straggler", 1000, attempt=0), line("start", attempt=1)]

    assert verdict("straggler", *entries).outcome is Outcome.INSUFFICIENT_DATA


def test_a_breach_of_any_attempt_counts():
    """
    A breach in the first attempt is not forgiven by a quiet second one.
    """
    entries = [line("breach", "hang", attempt=0), count("hang", 1000, attempt=1)]

    assert verdict("hang", *entries).outcome is Outcome.BREACHED


def test_a_breach_of_a_rule_that_the_contract_lacks_is_not_dropped():
    """
    A breach told by a rule of another version is a clause of its own.
    """
    clauses = verdicts([*FULL, line("breach", "seed_contract", rank=3)], CONTRACT)

    assert [c.rule for c in clauses if c.outcome is Outcome.BREACHED] == ["seed_contract"]
    assert not is_kept(clauses)


@pytest.mark.parametrize(
    ("entry", "outcome"),
    [
        (line("restored", evidence={"seconds": 29.9}), Outcome.MET),
        (line("restored", evidence={"seconds": 30}), Outcome.MET),
        (line("restored", evidence={"seconds": 30.1}), Outcome.BREACHED),
        (
            line("incident_end", rule="recovery_time", step=9, evidence={"seconds": 31}),
            Outcome.BREACHED,
        ),
        (line("restored", evidence={"seconds": math.nan}), Outcome.BREACHED),
        (line("incident_end", "hang", step=9, evidence={"seconds": 12.0}), Outcome.MET),
        (line("incident_end", "liveness", step=9, evidence={"seconds": 45.0}), Outcome.BREACHED),
        (line("restored"), Outcome.NOT_EXERCISED),
        (line("restored", evidence={"seconds": "NaN"}), Outcome.NOT_EXERCISED),
        (line("incident_end", "hang", evidence={"seconds": 12.0}), Outcome.NOT_EXERCISED),
        (
            line("incident_end", "straggler", step=9, evidence={"seconds": 7200.0}),
            Outcome.NOT_EXERCISED,
        ),
    ],
)
def test_the_recovery_clause_judges_recoveries_and_nothing_else(entry, outcome):
    """
    A recovery is in time or late by the level's promise; an incident that stopped
    nobody, or that only its run's end ended, is no recovery.
    """
    clause = verdict("recovery_time", entry)

    assert clause.outcome is outcome


def test_a_clause_has_the_form_of_a_ledger_line():
    """
    Written as a ledger line, a clause says outcome, count, place and limit.
    """
    breach = line("breach", "hang", rank=2, step=9, statistic=11.0, limit=10.0, unit="s")
    (entry,), _ = parse_ledger(
        verdict("hang", *FULL, breach).to_entry(time_ns=5, attempt=1).to_json().encode()
    )

    assert (entry.kind, entry.rule, entry.rank, entry.step) == ("verdict", "hang", 2, 9)
    assert (entry.statistic, entry.limit, entry.unit) == (11.0, 10.0, "s")
    assert (entry.mode, entry.action) == ("enforce", "stop")
    assert entry.evidence["outcome"] == "breached"
    assert entry.evidence["num_breaches"] == 1


entries = st.lists(
    st.builds(
        Entry,
        time_ns=st.just(0),
        attempt=st.integers(0, 2),
        kind=st.sampled_from(["start", "breach", "incident_begin", "verdict", "restored", "end"]),
        rule=st.none() | st.sampled_from([*RULES, "recovery_time", "other"]),
        rank=st.none() | st.integers(0, 3),
        evidence=st.dictionaries(
            st.sampled_from(["num_samples", "num_needed", "seconds"]),
            st.none() | st.integers(-5, 50) | st.floats() | st.text(max_size=3),
        ),
    ),
    max_size=12,
)


@given(entries)
def test_every_ledger_gets_a_verdict(ledger):
    """
    Any ledger gets exactly one verdict for each rule, and a clause is broken exactly if
    the ledger tells of its breach or of a late recovery.
    """
    clauses = verdicts(ledger, CONTRACT)

    named = [clause.rule for clause in clauses]
    told = {e.rule for e in ledger if e.rule and e.kind in ("breach", "incident_begin")}
    broken = {clause.rule for clause in clauses if clause.outcome is Outcome.BREACHED}
    assert len(named) == len(set(named))
    assert set(named) >= {*RULES, "recovery_time"}
    assert broken - {"recovery_time"} == told - {"recovery_time"}
