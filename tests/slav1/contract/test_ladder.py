"""The time-out ladder: every limit, in the order in which they act."""

import pytest

from slav1.contract import Contract, ladder


@pytest.mark.parametrize("level", ["L1", "L2", "L3"])
def test_it_leads_from_the_tick_to_the_recovery(level):
    """
    The ladder begins with the time between two looks, ends with grace and recovery, and
    names every limit of the hang rule between them.
    """
    contract = Contract.level(level)

    keys = [rung.key for rung in ladder(contract)]

    assert keys[0] == "monitor.tick_s"
    assert keys[-2:] == ["monitor.grace_s", "recovery_within_s"]
    for setting in ("limit_s", "first_step_limit_s", "evaluation_limit_s", "checkpoint_limit_s"):
        assert f"rules.hang.{setting}" in keys


def test_the_step_limit_of_every_level_leaves_time_to_recover():
    """
    A hang inside a training step ends within what the level promises.
    """
    for level in ("L1", "L2", "L3"):
        rungs = {rung.key: rung for rung in ladder(Contract.level(level))}
        assert rungs["rules.hang.limit_s"].is_within_recovery is True


def test_a_limit_that_is_too_long_shows():
    """
    A hang limit that leaves no time to recover is marked, sum and all.
    """
    contract = Contract.level("L1").override(hang={"limit_s": 28.0})

    rung = {rung.key: rung for rung in ladder(contract)}["rules.hang.limit_s"]

    assert rung.ended_after_s == pytest.approx(28 + 5 + 0.05)
    assert rung.is_within_recovery is False


@pytest.mark.parametrize("change", [{"mode": "observe"}, {"action": "log"}])
def test_a_rule_that_ends_nothing_promises_no_end(change):
    """
    A rule that only observes, or only logs, has limits but no time of ending.
    """
    rungs = ladder(Contract.level("L1").override(hang=change))

    rung = {rung.key: rung for rung in rungs}["rules.hang.limit_s"]

    assert (rung.limit_s, rung.ended_after_s, rung.is_within_recovery) == (10.0, None, None)


def test_a_rule_that_is_off_is_not_on_the_ladder():
    """
    The limits of a rule that is off are left out.
    """
    keys = [rung.key for rung in ladder(Contract.level("L1").override(hang={"mode": "off"}))]

    assert not [key for key in keys if key.startswith("rules.hang")]


@pytest.mark.parametrize(("rules", "extra_s"), [((), 2.0), (("hang",), 2.0), (("straggler",), 0.0)])
def test_a_policy_that_is_asked_adds_its_deadline(rules, extra_s):
    """
    A process is ended later by the time that a policy may take, where it is asked.
    """
    policy = {"file": "mine.rego", "deadline_ms": 2000, "rules": list(rules)}
    plain, asked = Contract.level("L1"), Contract.level("L1").override(policy=policy)

    ended = [
        {rung.key: rung for rung in ladder(each)}["rules.hang.limit_s"].ended_after_s
        for each in (plain, asked)
    ]

    assert ended[1] - ended[0] == pytest.approx(extra_s)
