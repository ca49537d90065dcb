"""The input document: what it holds, and that nothing in it passes for a number."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slav1.breach import Breach
from slav1.contract import Contract
from slav1.coordinator.adviser import Adviser, metadata_of
from slav1.coordinator.rollbacks import Rollbacks
from slav1.phase import Phase
from slav1.policy import Circumstances, judge, question
from slav1.policy.question import MAX_DOCUMENT_BYTES
from slav1.sample import Sample

CONTRACT = Contract.level("L1").override(policy={"file": "x.rego", "metadata": {"team": "blue"}})


def breach(**changes: Any) -> Breach:
    facts = {
        "rule": "hang",
        "rank": 1,
        "step": 7,
        "phase": Phase.BACKWARD,
        "statistic": 12.5,
        "limit": 10.0,
        "unit": "s",
        "message": "Rank 1 hangs.",
        "evidence": {"cause": "stuck", "ranks": [{"rank": 0}], "seconds": 3.5, "steps": [1, 2]},
    }
    return Breach(**{**facts, **changes})


def document(found: Breach, known: Circumstances | None = None) -> dict[str, Any]:
    rule = CONTRACT.rules[found.rule]
    return question(found, rule, judge(found, rule), known or Circumstances())


class Nobody:
    settings = CONTRACT.policy


def adviser() -> Adviser:
    return Adviser(Nobody(), CONTRACT, {**metadata_of(CONTRACT), "world_size": 2})


def asked(by: Adviser, found: Breach, now_s: float = 50.0, rollbacks: int = 0) -> dict[str, Any]:
    rule = CONTRACT.rules[found.rule]
    told = by.document(
        found,
        rule,
        judge(found, rule),
        now_s=now_s,
        rollbacks=Rollbacks(CONTRACT.checkpoint, range(rollbacks)),
        can_roll_back=True,
    )
    return json.loads(told)


def test_a_breach_is_told_with_its_rule_and_the_tables_word():
    """
    The document says what was found, by which rule, and what the table would do; lists of
    anything but numbers are left out.
    """
    told = document(breach())

    assert told["breach"] == {
        "rule": "hang",
        "rank": 1,
        "step": 7,
        "phase": "backward",
        "statistic": 12.5,
        "limit": 10.0,
        "unit": "s",
        "is_actionable": True,
        "message": "Rank 1 hangs.",
        "evidence": {"cause": "stuck", "seconds": 3.5, "steps": [1, 2]},
    }
    assert told["rule"] == {
        "name": "hang",
        "mode": "enforce",
        "action": "stop",
        "variant": "learned",
    }
    assert told["table"] == {"action": "stop"}


def test_the_job_is_told_of():
    """
    Metrics of the rank at fault, the time since the last step, the kind of job, the user's
    own facts, and what happened before.
    """
    by = adviser()
    memory = {"allocated_mib": 30.0, "reserved_mib": 100.0}
    by.on_samples([Sample(rank=0, step=6, time_s=1.0, loss=2.0)], 18.0)
    by.on_samples([Sample(rank=1, step=6, time_s=1.0, loss=math.nan, **memory)], 19.0)
    by.on_breach("hang")

    told = asked(by, breach(), rollbacks=2)
    of_all = asked(by, breach(rank=None))

    assert told["metrics"] == {**memory, "gpu_fragmentation_rate": 70.0, "step_stall_seconds": 31.0}
    assert told["metadata"] == {
        "team": "blue",
        "level": "L1",
        "job_type": "distributed_finetune",
        "world_size": 2,
        "can_roll_back": True,
    }
    assert told["history"] == {"breaches": 1, "rollbacks": 2, "rollbacks_within_window": 2}
    assert of_all["metrics"]["gpu_fragmentation_rate"] == 70.0
    assert of_all["metrics"]["loss"] == 2.0


def test_what_was_not_measured_is_not_there():
    """
    Nothing stands for a value that is unknown: neither 0 nor null.
    """
    told = asked(adviser(), breach(statistic=None, step=None, phase=None))

    assert told["metrics"] == {}
    assert not {"statistic", "step", "phase"} & told["breach"].keys()


@pytest.mark.parametrize("value", ["70", None, True, math.nan, math.inf, [1]])
def test_a_metric_that_is_no_number_is_refused(value):
    """
    In Rego a text is greater than any number, so a metric of another type is an error.
    """
    with pytest.raises(TypeError, match=r"gpu_fragmentation_rate must be a finite number"):
        Circumstances(metrics={"gpu_fragmentation_rate": value})


facts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(alphabet=st.characters()), facts), st.floats())
def test_any_evidence_makes_a_document_that_json_can_hold(evidence, statistic):
    """
    Whatever a detector puts into its evidence, the document is strict JSON and no longer
    than one message.
    """
    told = document(breach(evidence=evidence, statistic=statistic))

    raw = json.dumps(told, allow_nan=False)
    assert len(raw) < MAX_DOCUMENT_BYTES
    raw.encode()


def test_evidence_that_is_too_long_is_left_out():
    """
    A document stays within its size, if need be without evidence.
    """
    evidence = {f"text {i}": "x" * 900 for i in range(100)}

    assert document(breach(evidence=evidence))["breach"]["evidence"] == {}
