"""A policy in its process: loaded, refused, asked, ended when it does not answer."""

import contextlib
import gc
import json
import os
import signal
import sys
import time

import pytest

from slav1.contract import PolicySettings
from slav1.policy import Answer, PolicyError
from slav1.policy.__main__ import _load
from slav1.policy.process import MAX_DEATHS, PolicyProcess

pytestmark = pytest.mark.slow

# As the contract gives it.
SOURCE = """
package training.autoscale
default allow := false
allow if {
  input.metrics.gpu_fragmentation_rate > 65.0
  input.metrics.step_stall_seconds > 30
  input.metadata.job_type == "distributed_finetune"
}
"""
BY_RULE = """
package slav1.decision
action := "stop" if input.breach.rule == "non_finite"
action := "log" if input.breach.rule == "straggler"
action := 7 if input.breach.rule == "hang"
action := "stop" if { input.both; true }
action := "restart" if { input.both; true }
"""
SLOW = """
package slav1.decision
action := "stop" if input.is_quick
action := "log" if { input.factor; some i in numbers.range(1, 5000000); i * input.factor == -1 }
"""


def told(fragmentation, stall, job_type="distributed_finetune"):
    metrics = {"gpu_fragmentation_rate": fragmentation, "step_stall_seconds": stall}
    return json.dumps({"metrics": metrics, "metadata": {"job_type": job_type}})


def test_the_published_example_runs_as_given(open_policy):
    """
    The example of the contract grants what it says, and so does the policy that comes with
    the package, which holds the same rules.
    """
    for policy in (open_policy(SOURCE), open_policy(file="slav1:stall.rego")):
        assert policy.query == "data.training.autoscale.allow"
        values = [
            policy.answer_to(document).value
            for document in (
                told(65.1, 31),
                told(65.0, 31),
                told(65.1, 30),
                told(65.1, 31, "distributed_pretrain"),
                json.dumps({"metrics": {}, "metadata": {"job_type": "distributed_finetune"}}),
            )
        ]
        assert values == [True, False, False, False, False]


def test_answers_are_what_the_rule_says(open_policy):
    """
    A name, no answer, and anything else come as they are; rules that contradict each other
    are a problem in one line, without the trace of the engine's own code.
    """
    policy = open_policy(BY_RULE)

    def value(rule):
        return policy.answer_to(json.dumps({"breach": {"rule": rule}})).value

    assert [value(rule) for rule in ("non_finite", "straggler", "hang", "liveness")] == [
        "stop",
        "log",
        7,
        None,
    ]
    both = policy.answer_to('{"both": true}')
    assert both.value is None
    assert "\n" not in both.problem
    assert "backtrace" not in both.problem.lower()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("package training.autoscale\ndefault allow := true", ["true", "empty input"]),
        ("package training.autoscale\nallow if not input.metrics", ["empty input"]),
        ('package slav1.decision\ndefault action := "log"', ['"log"', "empty input"]),
        ("package slav1.decision\ndefault action := 3", ["3", "empty input"]),
        ("package slav1.decision\nallow {", ["no Rego policy", "2"]),
        ('package slav1.decision\naction = "stop" { input.x }', ["no Rego policy", "`if`"]),
        ('package slav1.decision\naction := "stop" if { x > 3 }', ["unsafe"]),
        ("package mine\nallow if input.x", ["data.mine", "policy.query"]),
        ("package slav1.decision\nactions := 1 if input.x", ["no rule data.slav1.decision.action"]),
        ("", ["no Rego policy"]),
        ("\0\1", ["no Rego policy"]),
    ],
)
def test_a_policy_that_must_not_be_used_is_refused_when_it_is_loaded(text, parts, monkeypatch):
    """
    A policy that grants on an empty input, older Rego, broken Rego and a package that
    nobody asks are refused in one line that says what is wrong.
    """
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    with pytest.raises(PolicyError) as refused:
        _load({"text": text, "name": "mine.rego", "query": None, "limit_s": 1.0})

    for part in ("mine.rego", *parts):
        assert part in str(refused.value)
    assert "backtrace" not in str(refused.value).lower()

    # An engine must go in the thread that made it, and errors hold on to theirs.
    del refused
    gc.collect()


def test_a_refusal_reaches_whoever_opens_the_policy(open_policy):
    """
    What is found wrong in the policy's own process is an error where it was opened.
    """
    with pytest.raises(PolicyError, match=r"policy .*policy-0\.rego: .*empty input"):
        open_policy("package training.autoscale\ndefault allow := true")


def test_a_default_that_leaves_it_to_the_table_is_no_grant(open_policy):
    """
    "table" as the default, and a rule of another name, may be used.
    """
    text = (
        'package mine\ndefault word := {"action": "table"}\nword := {"action": "stop"} if input.x'
    )

    policy = open_policy(text, query="data.mine.word")

    assert policy.answer_to("{}").value == {"action": "table"}
    assert policy.answer_to('{"x": 1}').value == {"action": "stop"}


def test_a_policy_that_cant_be_read_is_refused(tmp_path):
    """
    A file that is not there, a folder and no text are refused by name.
    """
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, part in {"no.rego": "No such file", "": "directory", "binary": "UTF-8"}.items():
        with pytest.raises(PolicyError, match=part) as refused:
            PolicyProcess.open(PolicySettings(file=str(tmp_path / name)))
        assert str(tmp_path) in str(refused.value)
    with pytest.raises(PolicyError, match="No such file"):
        PolicyProcess.open(PolicySettings(file="slav1:other.rego"))


def test_a_pipe_is_no_policy(tmp_path):
    """
    A pipe in place of the file, which would be waited for without end, is refused at once.
    """
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(PolicyError, match="a pipe"):
        PolicyProcess.open(PolicySettings(file=str(tmp_path / "pipe")))


def test_a_policy_that_ends_its_process_is_refused_with_the_reason(open_policy):
    """
    Rules that call themselves without end bring their process down at the first look:
    what is said names the signal and what it may come from.
    """
    text = "package slav1.decision\naction := f(1)\nf(x) := y if { y := f(x + 1) }"
    with pytest.raises(
        PolicyError, match=r"ended by signal (6|11), as where rules call themselves"
    ):
        open_policy(text)


def test_a_policy_without_an_end_is_ended_and_asked_again(open_policy):
    """
    An evaluation past its deadline is given up, its process ended, and the next question
    answered by a new one; after three times in a row nobody is asked any more.
    """
    policy = open_policy(SLOW, deadline_ms=700)
    first = policy._process
    assert policy.answer_to('{"is_quick": true}') == Answer(
        value="stop", took_s=pytest.approx(0.0, abs=0.7)
    )

    begin_s = time.monotonic()
    late = policy.answer_to('{"factor": 2}')
    assert "700 ms" in late.problem
    assert time.monotonic() - begin_s < 2.0
    assert first.wait(5.0) == -signal.SIGKILL

    _await_ready(policy)
    assert policy.answer_to('{"is_quick": true}').value == "stop"
    for _ in range(MAX_DEATHS):
        policy.answer_to('{"factor": 2}')
        _await_ready(policy)
    assert "3 times in a row" in policy.answer_to('{"is_quick": true}').problem


def test_a_process_that_was_killed_is_replaced(open_policy):
    """
    A process that ends by itself, or by somebody else's hand, is replaced at the next
    question.
    """
    policy = open_policy(BY_RULE, deadline_ms=2000)
    os.kill(policy._process.pid, signal.SIGKILL)
    policy._process.wait(5.0)

    answer = policy.answer_to('{"breach": {"rule": "non_finite"}}')

    assert answer.value == "stop"


def test_a_machine_without_room_for_a_process_is_said(open_policy, monkeypatch):
    """
    Where no new process can take the place of one that has ended, answers say why, and the table
    decides.
    """
    policy = open_policy(BY_RULE)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    policy._process.kill()
    policy._process.wait(5.0)

    problem = policy.answer_to('{"breach": {"rule": "non_finite"}}').problem

    assert problem.startswith("The policy's process can't be started again (No such file")
    assert policy.answer_to('{"breach": {"rule": "non_finite"}}').problem == problem


def test_the_process_ends_with_whoever_started_it(open_policy):
    """
    When nobody holds the other end any more, the process ends by itself.
    """
    policy = open_policy(BY_RULE)
    policy._channel.close()
    policy._theirs.close()

    assert policy._process.wait(5.0) == 0


def test_a_server_is_asked_and_may_be_away(open_policy, server):
    """
    A server that is there answers; one that grants on an empty input is refused; one that
    is slow, says something now and then for ever, or is gone, is a problem told once the
    deadline is over, and no error at the start.
    """
    server.body = b"{}"
    policy = open_policy(url=server.url, deadline_ms=800)
    assert policy.query == "data.slav1.decision.action"
    assert policy.first_problem is None
    server.body = b'{"result":"stop"}'
    assert policy.answer_to("{}").value == "stop"

    with pytest.raises(PolicyError, match="empty input"):
        open_policy(url=server.url)

    server.act = lambda _: time.sleep(1.5) or False
    slow = policy.answer_to("{}")
    assert slow.value is None
    assert "did not answer" in slow.problem

    def drip(handler):
        with contextlib.suppress(OSError):
            for _ in range(300):
                handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                time.sleep(0.01)
        handler.close_connection = True
        return False

    server.act = drip
    assert "did not answer" in open_policy(url=server.url, deadline_ms=800).first_problem
    server.close()
    gone = policy.answer_to("{}")
    assert "did not answer" in gone.problem
    away = open_policy(url=server.url, deadline_ms=800)
    assert "refused" in away.first_problem


def _await_ready(policy):
    """Waits until a process that was begun anew can answer, if one was."""
    deadline_s = time.monotonic() + 10.0
    while policy._process is not None and not policy._is_ready:
        policy.answers()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
