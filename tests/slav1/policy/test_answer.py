"""What a policy's answer may change, and what it never does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slav1.breach import Breach, Status
from slav1.contract import Contract
from slav1.decision import Action
from slav1.policy import Answer, judge, overruled

RULES = {
    mode: Contract.level("L1").override(non_finite={"mode": mode}).rules["non_finite"]
    for mode in ("observe", "enforce")
}


def breach(*, is_actionable: bool = True, status: Status = Status.BREACH) -> Breach:
    return Breach(
        rule="non_finite",
        status=status,
        is_actionable=is_actionable,
        rank=0,
        step=1,
        statistic=None,
        limit=None,
        unit="",
        message="x",
    )


def verdict(answer, *, mode="enforce", found=None, can_roll_back=True, grant=Action.RESTART):
    found = found or breach()
    rule = RULES[mode]
    table = judge(found, rule, can_roll_back=can_roll_back)
    after = overruled(
        table, answer, breach=found, rule=rule, grant=grant, can_roll_back=can_roll_back
    )
    return table, after


@pytest.mark.parametrize(
    ("value", "action"),
    [
        ("log", Action.LOG),
        ("stop", Action.STOP),
        ("restart", Action.RESTART),
        ({"action": "stop", "reason": "It is late."}, Action.STOP),
        (True, Action.RESTART),
        ("isolate", Action.LOG),
    ],
)
def test_an_enforced_rule_follows_the_policy(value, action):
    """
    A milder, a harder and another action take the place of the table's; true stands for
    the grant; what this version can't carry out stands for a line.
    """
    table, after = verdict(Answer(value=value))

    assert table.action is Action.ROLLBACK
    assert (after.action, after.would_have) == (action, None)
    assert after.policy["table"] == "rollback"


def test_a_rollback_where_nobody_can_go_back_is_a_stop():
    """
    A policy asks for no more than the host can carry out.
    """
    _, after = verdict(Answer(value="rollback"), can_roll_back=False)

    assert after.action is Action.STOP


@pytest.mark.parametrize(
    ("mode", "found"), [("observe", breach()), ("enforce", breach(is_actionable=False))]
)
def test_an_observed_rule_and_thin_evidence_stay_so(mode, found):
    """
    A rule that only observes, and a finding too weak to act on, are logged whatever the
    policy says; what would have been done is the policy's word.
    """
    _, after = verdict(Answer(value="stop"), mode=mode, found=found)
    _, milder = verdict(Answer(value="log"), mode=mode, found=found)

    assert (after.action, after.would_have) == (Action.LOG, Action.STOP)
    assert (milder.action, milder.would_have) == (Action.LOG, None)


@pytest.mark.parametrize("value", [None, False, "table", {"action": "table"}, {"action": False}])
def test_nothing_to_say_leaves_it_to_the_table(value):
    """
    Undefined, false and "table" change nothing, and are no trouble.
    """
    table, after = verdict(Answer(value=value))

    assert (after.action, after.would_have) == (table.action, table.would_have)
    assert "problem" not in after.policy


@pytest.mark.parametrize(
    "value", [1, 0, "STOP", "halt", "", [], ["stop"], {}, {"acton": "stop"}, {"action": 3}, 1e9]
)
def test_nonsense_leaves_it_to_the_table_and_is_told(value):
    """
    An answer that is neither a truth value nor an action changes nothing, and the ledger
    says what came.
    """
    table, after = verdict(Answer(value=value))

    assert (after.action, after.would_have) == (table.action, table.would_have)
    assert "It answered" in after.policy["problem"]


def test_a_problem_leaves_it_to_the_table_and_is_told():
    """
    Without an answer the table decides, and the ledger says why there was none.
    """
    table, after = verdict(Answer(problem="The policy did not answer within 250 ms."))

    assert (after.action, after.would_have) == (table.action, table.would_have)
    assert "250 ms" in after.policy["problem"]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([each.name.lower() for each in Action]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["action", "reason", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(deadline=None)
@given(json_values, st.sampled_from(["observe", "enforce"]), st.booleans(), st.sampled_from(Status))
def test_no_answer_breaks_a_promise(value, mode, is_actionable, status):
    """
    Whatever is answered: nothing is done for a rule that observes, for thin evidence or for
    what is no breach, and an action is always one that can be carried out.
    """
    found = breach(is_actionable=is_actionable, status=status)
    _, after = verdict(Answer(value=value), mode=mode, found=found)

    may_act = mode == "enforce" and is_actionable and status is Status.BREACH
    assert after.action is Action.LOG or may_act
    assert after.action in (
        Action.LOG,
        Action.THROTTLE_IO,
        Action.ROLLBACK,
        Action.STOP,
        Action.RESTART,
    )
