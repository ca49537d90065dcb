"""Findings that wait for a policy: in order, never longer than its deadline, and never lost."""

from typing import Any

import pytest

from slav1.contract import Contract
from slav1.coordinator import messages
from slav1.coordinator.adviser import Adviser
from slav1.coordinator.coordinator import Coordinator
from slav1.policy import Answer
from slav1.sample import Sample

from ._books import Books, Job, finding, recovery

DEADLINE_S = 0.25


class Slowly:
    """A policy that answers when the test says so."""

    def __init__(self, contract: Contract) -> None:
        self.settings = contract.policy
        self.asked: list[tuple[int, str]] = []
        self.ready: list[tuple[int, Answer]] = []
        self.num_given_up = 0
        self.is_there, self.is_gone = True, False

    def ask(self, number: int, document: str) -> bool:
        if self.is_there:
            self.asked.append((number, document))
        return self.is_there

    def answers(self) -> list[tuple[int, Answer]]:
        found, self.ready = self.ready, []
        return found

    def has_ended(self) -> bool:
        return self.is_gone

    def give_up(self) -> None:
        self.num_given_up += 1

    def why_silent(self) -> str:
        return "The policy did not answer within 250 ms."


class PolicyJob(Job):
    """The job of the other tests, with a policy."""

    def __init__(self, folder: Any, **clauses: Any) -> None:
        Books.__init__(self, folder)
        self.sent = []
        self.now_s = 100.0
        self.ranks_of_node = self.num_nodes = 2
        self.num_nodes = 1
        contract = Contract.level("L1").override(policy={"file": "x", **clauses})
        self.policy = Slowly(contract)
        self.coordinator = Coordinator(
            contract,
            world_size=2,
            num_nodes=1,
            journal=self.journal,
            send=lambda node, message: self.sent.append((node, message)),
            adviser=Adviser(self.policy, contract, {}),
        )

    def answer(self, value: Any = None, *, after_s: float = 0.01) -> None:
        """The policy answers the newest question."""
        self.now_s += after_s
        self.policy.ready.append((self.policy.asked[-1][0], Answer(value=value)))
        self.coordinator.on_policy(self.now_s)

    def wait(self, seconds: float) -> None:
        """Time passes and the policy says nothing."""
        self.now_s += seconds
        self.coordinator.on_policy(self.now_s)


@pytest.fixture
def start(tmp_path: Any) -> Any:
    jobs = []

    def _start(**clauses: Any) -> PolicyJob:
        jobs.append(PolicyJob(tmp_path, **clauses))
        return jobs[-1].start()

    yield _start
    for job in jobs:
        job.close()


def test_the_policy_changes_what_is_done(start):
    """
    Nothing is done before the answer; then the policy's action is, and the breach says what
    the policy and the table said.
    """
    job = start()
    job.report(0, finding("non_finite", 0))
    assert job.entries("breach") == job.of_kind(messages.Hold) == []

    job.answer("restart", after_s=0.1)

    (breach,) = job.entries("breach")
    assert breach.action == "restart"
    assert breach.evidence["policy"] == {
        "said": "restart",
        "table": "stop",
        "took_s": pytest.approx(0.1),
    }
    number = job.of_kind(messages.Hold)[0][1].number
    job.hear(0, messages.Acknowledged(number=number, step=9))
    (decision,) = job.entries("decision")
    assert decision.action == "restart"
    assert "The policy says restart, not stop." in decision.message


def test_a_policy_that_says_nothing_delays_by_its_deadline_and_no_more(start):
    """
    At the deadline the table decides, the question is given up, and the ledger says it
    once; what the policy says later changes nothing.
    """
    job = start()
    job.report(0, finding("non_finite", 0))
    job.wait(DEADLINE_S - 0.01)
    assert job.of_kind(messages.Hold) == []
    job.wait(0.02)

    assert len(job.of_kind(messages.Hold)) == 1
    assert job.policy.num_given_up == 1
    assert job.entries("breach")[0].action == "stop"
    job.report(0, finding("non_finite", 1))
    job.policy.ready.append((1, Answer(value="log")))
    job.wait(0.01)
    assert job.coordinator.is_waiting_for_policy
    job.wait(DEADLINE_S)
    told = [text for text in job.messages("notice") if "table decides" in text]
    assert len(told) == 1
    assert [entry.action for entry in job.entries("breach")] == ["stop", "stop"]


def test_many_findings_at_once_wait_no_longer_than_one(start):
    """
    The deadline counts from the finding, so a storm of them is judged within one.
    """
    job = start()
    job.report(0, *(finding("non_finite", rank % 2, step=rank) for rank in range(100)))
    job.wait(DEADLINE_S)

    assert len(job.entries("breach")) == 100
    assert len(job.policy.asked) == 1


def test_nobody_there_is_no_delay(start):
    """
    Where the policy can't even be asked, the table decides at once.
    """
    job = start()
    job.policy.is_there = False
    job.report(0, finding("non_finite", 0))

    assert len(job.of_kind(messages.Hold)) == 1
    assert "problem" in job.entries("breach")[0].evidence["policy"]


def test_a_policy_that_ended_is_not_waited_for(start):
    """
    When the process that was asked has ended, the table decides at the next look.
    """
    job = start()
    job.report(0, finding("non_finite", 0))
    job.policy.is_gone = True
    job.wait(0.002)

    assert len(job.of_kind(messages.Hold)) == 1
    assert job.policy.num_given_up == 1


def test_order_is_kept(start):
    """
    What comes behind a finding that waits is judged after it: a recovery ends the incident
    that its breach begins.
    """
    job = start(rules=["sync_latency"])
    job.report(0, finding("sync_latency", 0), finding("straggler", 1), recovery("sync_latency", 0))
    assert job.entries("breach") == []
    job.answer(None)

    kinds = [(entry.kind, entry.rule) for entry in job.entries() if entry.rule]
    assert kinds == [
        ("incident_begin", "sync_latency"),
        ("breach", "sync_latency"),
        ("incident_begin", "straggler"),
        ("breach", "straggler"),
        ("incident_end", "sync_latency"),
    ]
    assert len(job.policy.asked) == 1


def test_a_save_waits_for_what_its_steps_lead_to(start):
    """
    Who asks for the detectors' memories gets them after the findings of its steps are
    judged, and so after the hold that they lead to.
    """
    job = start()
    samples = tuple(Sample(rank=rank, step=0, time_s=1.0, loss=1.0) for rank in (0, 1))
    job.report(0, finding("non_finite", 0, step=0), samples=samples)
    job.hear(0, messages.StateAsked(rank=0, number=1, step=0))
    assert job.of_kind(messages.StateAnswer) == []

    job.answer("stop")

    kinds = [type(message) for _, message in job.sent]
    assert kinds.index(messages.Hold) < kinds.index(messages.StateAnswer)


def test_the_end_waits_for_the_last_answer(start):
    """
    A run does not end before its last finding is judged, and does at the deadline.
    """
    job = start()
    job.report(0, finding("straggler", 0))
    job.leave(0)
    job.leave(1)
    job.done(0)
    assert not job.coordinator.is_finished
    job.wait(DEADLINE_S)

    assert job.coordinator.is_finished
    assert len(job.entries("breach")) == 1


def test_going_back_settles_what_waits(start):
    """
    A finding from before a rollback is judged before the rank is back: it must not send the
    run back a second time.
    """
    job = start()
    job.report(0, finding("non_finite", 0))
    job.hear(0, messages.RankWentBack(rank=0, to_step=3, state=None))

    (breach,) = job.entries("breach")
    assert "gone back" in breach.evidence["policy"]["problem"]
    assert not job.coordinator.is_waiting_for_policy


def test_silent_ranks_end_together_though_the_policy_is_asked(start):
    """
    A lost rank ends the job at the deadline; processes that end meanwhile are told as ended.
    """
    job = start()
    job.report(0, finding("liveness", 1), finding("liveness", 0))
    job.wait(DEADLINE_S)

    assert len(job.of_kind(messages.End)) == 1
    assert job.messages("action") == ["The process of rank 0 was ended."]
