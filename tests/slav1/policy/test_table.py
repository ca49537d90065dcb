"""From breach to action through the contract's table."""

from dataclasses import replace

import pytest

from slav1.breach import Breach, Status
from slav1.contract import Contract, Mode
from slav1.decision import Action
from slav1.policy import Verdict, available, judge


def breach(status: Status = Status.BREACH, *, is_actionable: bool = True) -> Breach:
    return Breach(
        rule="hang",
        status=status,
        is_actionable=is_actionable,
        rank=0,
        step=1,
        statistic=2.0,
        limit=1.0,
        unit="s",
        message="x",
    )


def rule(mode: Mode, action: str = "stop"):
    return Contract.level("L1").override(hang={"mode": mode.value, "action": action}).rules["hang"]


def test_enforced_rule_with_enough_evidence_acts():
    """
    A breach of an enforced rule leads to its action if the evidence is enough for it.
    """
    verdict = judge(breach(), rule(Mode.ENFORCE))

    assert verdict == Verdict(action=Action.STOP, would_have=None)


@pytest.mark.parametrize(
    ("found", "mode"),
    [(breach(), Mode.OBSERVE), (breach(is_actionable=False), Mode.ENFORCE)],
)
def test_everything_else_only_logs(found, mode):
    """
    A rule that only observes, or evidence that is too thin, is logged with what would have
    been done.
    """
    assert judge(found, rule(mode)) == Verdict(action=Action.LOG, would_have=Action.STOP)


@pytest.mark.parametrize("status", [Status.NOTICE, Status.RECOVERED])
def test_what_is_no_breach_leads_to_nothing(status):
    """
    Notices and recoveries never lead to an action, and would not have.
    """
    verdict = judge(breach(status), rule(Mode.ENFORCE))

    assert verdict == Verdict(action=Action.LOG, would_have=None)


def test_rule_that_asks_for_a_line_gets_a_line():
    """
    A rule whose action is to log would have done nothing else.
    """
    verdict = judge(breach(), rule(Mode.ENFORCE, "log"))

    assert verdict == Verdict(action=Action.LOG, would_have=None)


def test_a_finding_may_ask_for_something_else():
    """
    What a finding asks for goes before the rule's action, but not where that is to log; to skip
    batches stands for a rollback only.
    """
    found = replace(breach(), action="snapshot")

    assert judge(found, rule(Mode.ENFORCE)).action is Action.SNAPSHOT
    assert judge(found, rule(Mode.OBSERVE)).would_have is Action.SNAPSHOT
    assert judge(found, rule(Mode.ENFORCE, "log")) == Verdict(action=Action.LOG, would_have=None)
    skip = replace(breach(), action="skip_batches")
    assert judge(skip, rule(Mode.ENFORCE, "rollback")).action is Action.SKIP_BATCHES
    assert judge(skip, rule(Mode.ENFORCE)).action is Action.STOP


@pytest.mark.parametrize("action", list(Action))
def test_every_action_stands_for_one_that_can_be_carried_out(action):
    """
    Each action of a contract leads to one that this version can carry out, and never to a
    harder one than was asked for, but for the rollback of a host that can't go back, which
    protects the run as a stop.
    """
    done, without = available(action), available(action, can_roll_back=False)

    assert done is not Action.ISOLATE
    assert done <= action
    assert without is (Action.STOP if action is Action.ROLLBACK else done)
