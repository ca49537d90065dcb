"""Our evaluation beside that of the real engine: the same answer to the same question.

Needs the package ``opa-golib-python-bindings``, which is no dependency of the tests::

    pip install --ignore-requires-python opa-golib-python-bindings
"""

import json
import random
from pathlib import Path

import pytest

import slav1.policy
from slav1.policy import PolicyError
from slav1.policy.rego import RegoPolicy

bindings = pytest.importorskip("opa_bindings")
pytestmark = [pytest.mark.slow, pytest.mark.thorough]

POLICIES = {
    "data.training.autoscale.allow": Path(slav1.policy.__file__)
    .with_name("stall.rego")
    .read_text(),
    "data.slav1.decision.action": """
package slav1.decision
import rego.v1
default action := "table"
action := "restart" if {
  input.rule.name in {"hang", "liveness"}
  input.history.rollbacks >= 2
} else := {"action": "stop", "reason": sprintf("step %d", [input.breach.step])} if {
  is_number(input.breach.statistic)
  input.breach.statistic > input.breach.limit * 2
} else := "log" if count([x | some x in input.breach.evidence.steps; x % 2 == 0]) > 1
""",
    "data.mine.words.kept": """
package mine.words
kept[name] := value if some name, value in input.metrics
kept.job := lower(input.metadata.job_type)
""",
    "data.mine.clash": """
package mine
clash := "stop" if input.metrics.loss > 1
clash := "log" if input.metrics.loss > 2
""",
}
ODD = [None, True, "70", "x", "", 0, -1, 1, 2, 3, 30, 31, 65.0, 65.1, 70, 1e300, [1, 2, 4], {}]
NAMES = ("loss", "gpu_fragmentation_rate", "step_stall_seconds")


def document(numbers: random.Random) -> dict[str, object]:
    def maybe(**values: object) -> dict[str, object]:
        return {name: value for name, value in values.items() if numbers.random() < 0.8}

    def odd() -> object:
        return numbers.choice(ODD)

    kind = numbers.choice(["distributed_finetune", "DISTRIBUTED_finetune", 3])
    return maybe(
        metrics=maybe(**{name: odd() for name in NAMES}),
        rule=maybe(name=numbers.choice(["hang", "liveness", "stall"])),
        history=maybe(rollbacks=odd()),
        breach=maybe(
            step=numbers.randrange(9), statistic=odd(), limit=odd(), evidence=maybe(steps=odd())
        ),
        metadata=maybe(job_type=kind),
    )


@pytest.mark.parametrize("query", POLICIES)
def test_answers_are_those_of_the_real_engine(query):
    """
    Over documents of every kind of value, text and null in place of numbers included, the
    answers are the same. Only what OPA calls undefined because a value has the wrong type for
    a calculation may be an error here, which leaves it to the table as well.
    """
    ours = RegoPolicy(POLICIES[query], "mine.rego", query)
    numbers = random.Random(7)
    seen, num_stricter = set(), 0
    with bindings.OpaEngine() as real:
        real.add_policy("mine.rego", POLICIES[query])
        for _ in range(1000):
            asked = document(numbers)
            answer, expected = _ours(ours, asked), _real(real, query, asked)
            is_stricter = answer == "error" and "*" in POLICIES[query]
            assert answer == expected or is_stricter, json.dumps(asked)
            num_stricter += answer != expected
            seen.add(repr(answer))

    assert len(seen) > 1
    assert num_stricter < 400


def _ours(policy: RegoPolicy, asked: dict[str, object]) -> object:
    try:
        return policy.value(json.dumps(asked))
    except PolicyError:
        return "error"


def _real(engine: object, query: str, asked: dict[str, object]) -> object:
    try:
        return engine.eval_document(query.removeprefix("data."), input=asked)  # type: ignore[attr-defined]
    except bindings.OpaUndefinedError:
        return None
    except bindings.OpaError:
        return "error"
