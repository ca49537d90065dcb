"""Saves in a ledger: which lines count, and what may be said about their rate."""

import pytest

from slav1.contract import Contract
from slav1.ledger import Entry
from slav1.saves import SaveRate, save_in
from slav1.verdict import Clause, Outcome, verdicts

CONTRACT = Contract.level("L1")


def ledger(num_good: int, num_failed: int = 0, attempt: int = 0) -> list[Entry]:
    good = [Entry(time_ns=0, attempt=attempt, kind="checkpoint_committed", step=1)] * num_good
    failed = Entry(
        time_ns=0,
        attempt=attempt,
        kind="checkpoint_rejected",
        step=2,
        evidence={"num_failed_in_row": 1, "reason": "The disk is full."},
    )
    return [*good, *[failed] * num_failed]


def clause(entries: list[Entry], contract: Contract = CONTRACT) -> Clause:
    return next(each for each in verdicts(entries, contract) if each.rule == "ckpt_success")


@pytest.mark.parametrize(
    ("num_good", "num_failed", "outcome"),
    [
        (0, 0, Outcome.INSUFFICIENT_DATA),
        (2, 0, Outcome.INSUFFICIENT_DATA),
        (500, 0, Outcome.INSUFFICIENT_DATA),
        (1000, 0, Outcome.MET),
        (0, 1, Outcome.BREACHED),
        (60, 1, Outcome.INSUFFICIENT_DATA),
        (60, 4, Outcome.BREACHED),
        (4000, 4, Outcome.MET),
    ],
)
def test_the_clause_says_no_more_than_its_saves_prove(num_good, num_failed, outcome):
    """
    Few good saves are insufficient data, enough of them keep the clause, and failures break it
    only where the target is missed with 99 %.
    """
    assert clause(ledger(num_good, num_failed)).outcome is outcome


def test_bounds_are_published():
    """
    The sentence and the evidence of the clause give both bounds and their confidence.
    """
    told = clause(ledger(999, 1))

    entry = told.to_entry(time_ns=0, attempt=0)
    assert "1 of 1000 saves failed: the rate of success is at least 99.5" in told.message
    assert 0.995 < entry.evidence["lower_bound"] < 0.997 < entry.evidence["upper_bound"] < 1.0
    assert entry.evidence["confidence"] == 0.95


def test_attempts_add_up():
    """
    Saves of all attempts count together: a restart changes no disk.
    """
    assert clause([*ledger(600), *ledger(600, attempt=1)]).outcome is Outcome.MET


def test_a_breach_that_was_found_stays_one():
    """
    A corrupt write breaks the clause, however good the rate; the bounds stand beside it.
    """
    breach = Entry(
        time_ns=0, attempt=0, kind="breach", rule="ckpt_success", step=5, message="Corrupt."
    )

    told = clause([*ledger(2000), breach])

    assert told.outcome is Outcome.BREACHED
    assert told.message.startswith("Corrupt.") and "0 of 2000" in told.message


def test_a_rule_that_is_off_is_not_judged():
    """
    With the rule off its clause is not exercised, whatever failed.
    """
    contract = CONTRACT.override(ckpt_success={"mode": "off"})

    assert clause(ledger(0, 5), contract).outcome is Outcome.NOT_EXERCISED


def test_only_writes_count():
    """
    A checkpoint that was passed over is no failed write; one found corrupt is.
    """
    assert save_in("checkpoint_rejected", 3, {"reason": "tried twice"}, time_s=0.0) is None
    assert save_in("notice", 3, {"num_failed_in_row": 1}, time_s=0.0) is None
    corrupt = save_in("checkpoint_rejected", None, {"is_corrupt": True}, time_s=1.0)
    assert corrupt is not None and corrupt.is_corrupt and not corrupt.succeeded
    rate = SaveRate.of(ledger(3, 2), 0.997)
    assert (rate.num_saves, rate.num_failed) == (5, 2)
