"""One node's ranks under watch: what is reported, saved, held and ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slav1.coordinator import messages as job
from slav1.coordinator.membership import NODE_SILENCE_S
from slav1.monitor import rings
from slav1.monitor.lookout import MAX_SAMPLES, REPORT_EVERY_S
from slav1.monitor.node_decision import HOLD_LIMIT_S
from slav1.phase import Phase
from slav1.recorder.layout import Word
from slav1.recorder.ring import read_ring_file
from slav1.session import messages as local

from ._ranks import Node, Rank


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    nodes = []

    def _start(**settings: Any) -> Node:
        nodes.append(Node(tmp_path, **settings))
        return nodes[-1]

    yield _start
    for node in nodes:
        node.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, in place of a trainer."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def now_s() -> float:
    return time.monotonic()


def test_steps_are_reported_once(start):
    """
    Each finished step is reported once, with the tick after it; without news a report goes
    out each second.
    """
    node = start()
    trainer, _ = node.join(0)
    for step in range(5):
        trainer.finish_step(step)
    at_s = now_s()
    for tick in range(3):
        node.monitor.on_tick(at_s + 0.05 * tick)
    node.monitor.on_tick(at_s + REPORT_EVERY_S + 0.2)
    reports = node.of_kind(job.Report)

    assert [[sample.step for sample in report.samples] for report in reports] == [
        [0, 1, 2, 3, 4],
        [],
    ]


def test_long_report_goes_out_in_parts(start):
    """
    After a pause more steps than one message may hold are reported in several, in order.
    """
    node = start()
    trainer, _ = node.join(0, num_slots=4096)
    for step in range(MAX_SAMPLES + 10):
        trainer.finish_step(step)
    node.monitor.on_tick(now_s())
    sizes = [len(report.samples) for report in node.of_kind(job.Report)]

    assert sizes == [MAX_SAMPLES, 10]


def test_steps_that_were_overwritten_are_counted(start):
    """
    Steps that the ring lost before they were read are counted in the node's last word.
    """
    node = start()
    trainer, watched = node.join(0, num_slots=16)
    for step in range(50):
        trainer.finish_step(step)
    node.monitor.on_tick(now_s())
    node.monitor.on_rank_message(watched, local.Goodbye(reason="finished"))
    node.monitor.on_tick(now_s())

    assert node.of_kind(job.NodeDone)[0].num_lost == 34


def test_goodbye_saves_the_ring_and_is_answered(start, tmp_path):
    """
    A rank that leaves gets its last steps reported, its ring saved and an answer; when the
    last one has left the node says that it is done, once.
    """
    node = start()
    trainer, watched = node.join(0)
    trainer.finish_step(0)
    node.monitor.on_rank_message(watched, local.Goodbye(reason="finished"))
    for _ in range(3):
        node.monitor.on_tick(now_s())

    assert isinstance(trainer.hear(), local.Farewell)
    assert [sample.step for sample in read_ring_file(tmp_path / "ring-0.bin")] == [0]
    assert node.of_kind(job.RankLeft) == [job.RankLeft(rank=0, is_lost=False, reason="finished")]
    assert [sample.step for report in node.of_kind(job.Report) for sample in report.samples] == [0]
    assert len(node.of_kind(job.NodeDone)) == 1


def test_dead_rank_is_reported_at_once(start, sleeper, tmp_path):
    """
    When a rank's process is gone, breach, loss and ring come with the same look.
    """
    node = start()
    _, watched = node.join(1, pid=sleeper.pid)
    node.monitor.on_rank_gone(watched)
    assert node.of_kind(job.RankLeft) == []
    sleeper.kill()
    sleeper.wait()
    node.monitor.on_rank_gone(watched)
    node.monitor.on_rank_gone(watched)
    findings = [plain for report in node.of_kind(job.Report) for plain in report.findings]

    assert [(plain["rule"], plain["rank"]) for plain in findings] == [("liveness", 1)]
    assert node.of_kind(job.RankLeft) == [job.RankLeft(rank=1, is_lost=True, reason="lost")]
    assert (tmp_path / "ring-1.bin").exists()


def test_rank_that_said_why_is_not_lost(start, sleeper):
    """
    A rank that published an exception before its process ended left for that reason.
    """
    node = start()
    _, watched = node.join(0, pid=sleeper.pid)
    node.monitor.on_rank_message(watched, local.Failure(error="ValueError: no", step=3))
    sleeper.kill()
    sleeper.wait()
    node.monitor.on_rank_gone(watched)

    assert node.of_kind(job.FirstException)[0].error == "ValueError: no"
    assert node.of_kind(job.RankLeft)[0].reason == "ValueError: no"
    assert not node.of_kind(job.RankLeft)[0].is_lost


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rank": 4}, "ranks 0 to 3, not 4"),
        ({"rank": -1}, "ranks 0 to 3, not -1"),
        ({"rank": 0}, "watched already, by process"),
    ],
)
def test_wrong_rank_is_refused(start, change, text):
    """
    A rank that the job does not have, or that is here already, is refused with the reason,
    and its descriptors stay the caller's.
    """
    node = start()
    node.join(0)
    trainer = Rank(1)
    node.ranks.append(trainer)
    for name, value in change.items():
        setattr(trainer.hello, name, value)
    fds = trainer.fds()
    with pytest.raises(ValueError, match=text):
        node.monitor.join(trainer.hello, trainer.connection(), fds)
    for fd in fds:
        os.close(fd)

    assert list(node.monitor.ranks) == [0]


@pytest.mark.parametrize("what", ["another version", "cut", "too short", "a pipe", "read-only"])
def test_block_that_cannot_be_read_is_refused(start, what, tmp_path):
    """
    A rank whose block is of another version, cut, or no block is refused; nothing is
    leaked, and the next rank is taken.
    """
    node = start()
    trainer = Rank(1)
    node.ranks.append(trainer)
    file = tmp_path / "block"
    raw = bytearray(os.pread(trainer.block.fd, 1 << 20, 0))
    raw[8] = 99 if what == "another version" else raw[8]
    file.write_bytes(raw[:-1] if what == "cut" else raw[:100] if what == "too short" else raw)
    read, write = os.pipe()
    fd = os.open(file, os.O_RDONLY if what == "read-only" else os.O_RDWR)
    fds = [read if what == "a pipe" else fd, write]
    with pytest.raises(ValueError, match=r"[Ff]light ring|flight ring"):
        node.monitor.join(trainer.hello, trainer.connection(), fds)
    for each in {fd, read, write}:
        os.close(each)
    node.join(2)

    assert list(node.monitor.ranks) == [2]


def test_spoilt_words_of_a_rank_end_nothing(start):
    """
    Whatever a stray pointer of one trainer writes over its words, all ranks are still read.
    """
    node = start()
    spoilt, _ = node.join(0)
    healthy, _ = node.join(1)
    for word in (Word.PHASE, Word.STEP, Word.NUM_RECORDS, Word.CARRIED_OUT, Word.NUM_BATCHES):
        for value in (-1, 255, 1 << 62):
            spoilt.block.words[word] = value
            healthy.finish_step(0)
            node.monitor.on_tick(now_s())
    samples = [sample for report in node.of_kind(job.Report) for sample in report.samples]

    assert len([sample for sample in samples if sample.rank == 1]) == 15


def test_ranks_are_held_and_scheduled(start):
    """
    A hold is answered with the largest step that any rank published; the schedule reaches
    all of them, what they carry out is reported once, and a release lets them go.
    """
    node = start()
    trainers = [node.join(rank)[0] for rank in (0, 1)]
    for trainer, step in zip(trainers, (4, 6), strict=True):
        trainer.block.words[Word.STEP] = step
    node.monitor.on_message(job.Hold(number=1))
    assert node.of_kind(job.Acknowledged) == [job.Acknowledged(number=1, step=6)]
    assert node.monitor.is_busy
    node.monitor.on_message(job.Schedule(number=1, step=6, action=7))
    for trainer in trainers:
        assert trainer.block.words[Word.SCHEDULED] == 1
        assert trainer.block.words[Word.SCHEDULE_STEP] == 6
        trainer.block.words[Word.CARRIED_OUT] = 1
    for _ in range(3):
        node.monitor.look_closely(now_s())
    node.monitor.on_message(job.Release(number=1))

    assert [message.rank for message in node.of_kind(job.CarriedOut)] == [0, 1]
    assert [trainer.block.words[Word.HOLD] for trainer in trainers] == [0, 0]
    assert not node.monitor.is_busy


def test_ranks_are_let_go_when_no_schedule_comes(start):
    """
    Ranks that are held go on when the coordinator says nothing more; a schedule that comes
    after that is not told to them, since they may act on it at different steps.
    """
    node = start()
    trainer, _ = node.join(0)
    node.monitor.on_message(job.Hold(number=3))
    node.monitor.look_closely(now_s() + HOLD_LIMIT_S - 1)
    assert trainer.block.words[Word.HOLD] == 3
    node.monitor.look_closely(now_s() + HOLD_LIMIT_S + 1)
    node.monitor.on_message(job.Schedule(number=3, step=9, action=7))

    assert trainer.block.words[Word.HOLD] == 0
    assert trainer.block.words[Word.SCHEDULED] == 0


def test_end_is_announced_then_terminated_then_killed(start, sleeper, tmp_path):
    """
    Processes that the contract ends are told so in their block, get SIGTERM, and SIGKILL
    when the grace time is over; their rings are saved.
    """
    node = start(monitor={"grace_s": 0.2})
    trainer, _ = node.join(0, pid=sleeper.pid)
    os.kill(sleeper.pid, signal.SIGSTOP)
    node.monitor.on_message(job.End(reason="x", leave_s=0.1))
    assert trainer.block.words[Word.ENDED] == 1
    node.monitor.on_tick(now_s())
    assert sleeper.poll() is None
    node.monitor.on_tick(now_s() + 0.15)
    assert sleeper.poll() is None
    node.monitor.on_tick(now_s() + 1.0)

    assert sleeper.wait(timeout=5) == -signal.SIGKILL
    node.monitor.tell_done()
    assert (tmp_path / "ring-0.bin").exists()


def test_disk_that_hangs_keeps_nobody_alive(start, sleeper, tmp_path, capfd, monkeypatch):
    """
    Where the run folder does not answer, ranks are ended all the same, the node comes to its
    end in bounded time, and the rings that are lost are told of.
    """
    monkeypatch.setattr(rings, "BESIDE_LIMIT_S", 0.2)
    node = start(monitor={"grace_s": 0.2})
    node.join(0, pid=sleeper.pid)
    # Opening it waits for a reader, as a disk that hangs waits for its answer.
    os.mkfifo(tmp_path / ".ring-0.bin.part")
    node.monitor.on_message(job.End(reason="x", leave_s=0.0))
    node.monitor.on_tick(now_s())
    assert sleeper.wait(timeout=5) == -signal.SIGTERM
    node.monitor.on_tick(now_s())
    node.monitor.tell_done()

    assert len(node.of_kind(job.NodeDone)) == 1
    assert "rings of ranks [0] could not be written" in capfd.readouterr().err
    with (tmp_path / ".ring-0.bin.part").open("rb") as reader:
        reader.read()


def test_lost_coordinator_leaves_the_ending_to_the_node(start, sleeper, capfd):
    """
    Only while the coordinator is silent does a node itself end ranks that stand still
    beyond their hard limit.
    """
    limits = {"limit_s": 1.0, "first_step_limit_s": 1.0, "setup_limit_s": 1.0}
    node = start(hang=limits, monitor={"grace_s": 600.0})
    trainer, _ = node.join(0, pid=sleeper.pid)
    at_s = now_s()
    node.monitor.on_message(job.Beat())
    node.monitor.on_tick(at_s + 5.0)
    assert trainer.block.words[Word.ENDED] == 0
    for tenth in range(10, 15):
        node.monitor.on_tick(at_s + NODE_SILENCE_S + 0.1 * tenth)

    assert sleeper.wait(timeout=5) == -signal.SIGTERM
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 2 and "is silent" in told[0] and "without the coordinator" in told[1]


def test_lost_coordinator_does_not_end_ranks_that_go_on(start, sleeper, capfd):
    """
    A node whose coordinator is silent ends nobody while its ranks make progress, and says
    when the coordinator is heard again.
    """
    node = start()
    trainer, _ = node.join(0, pid=sleeper.pid)
    at_s = now_s()
    for second in range(30):
        trainer.block.words[Word.CHANGED_NS] = int((at_s + second) * 1e9)
        node.monitor.on_tick(at_s + second)
    node.monitor.on_pause(at_s + 30)
    node.monitor.on_tick(at_s + 30)

    assert sleeper.poll() is None
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 2 and "is heard again" in told[1]


def test_pause_of_the_monitor_is_nobodys_silence(start):
    """
    After the monitor itself stood still, ranks get their whole limit again.
    """
    limits = {"limit_s": 5.0, "first_step_limit_s": 5.0, "setup_limit_s": 5.0}
    node = start(hang=limits)
    node.join(0)
    at_s = now_s()
    node.monitor.on_pause(at_s + 60)
    node.monitor.on_tick(at_s + 60)
    node.monitor.on_tick(at_s + 64)
    findings = [plain for report in node.of_kind(job.Report) for plain in report.findings]
    assert findings == []
    node.monitor.on_tick(at_s + 66)

    findings = [plain for report in node.of_kind(job.Report) for plain in report.findings]
    assert [plain["rule"] for plain in findings] == ["hang"]


def test_folder_that_lacks_on_this_node_is_told_once(start, tmp_path, capfd):
    """
    On a node without the run folder the rings can't be saved: that is said once, and
    training is not affected.
    """
    node = start(config={"run_folder": str(tmp_path / "elsewhere")})
    for rank in range(3):
        _, watched = node.join(rank)
        node.monitor.on_rank_message(watched, local.Goodbye(reason="finished"))
    node.monitor.on_tick(now_s())

    told = capfd.readouterr().err.splitlines()
    assert len(told) == 1 and "Training is not affected" in told[0]
    assert len(node.of_kind(job.NodeDone)) == 1


def test_words_of_a_rank_reach_the_coordinator(start):
    """
    What a rank notes, compares, restores and asks is passed on with its number.
    """
    node = start()
    trainer, watched = node.join(2)
    trainer.recorder.enter(int(Phase.BACKWARD))
    for message in (
        local.Note(message="hello", step=1, evidence={"a": 1}),
        local.Facts(num_batches=3),
        local.Restore(state={}),
        local.AskState(),
        local.Failure(error="no", step=2),
    ):
        node.monitor.on_rank_message(watched, message)
    node.monitor.on_message(job.StateAnswer(rank=2, state={"x": 1}))

    assert [type(message).__name__ for message in node.sent[1:]] == [
        "RankNote",
        "RankFacts",
        "StateRestored",
        "Report",
        "StateAsked",
        "FirstException",
    ]
    assert node.sent[-1].phase is Phase.BACKWARD
    assert trainer.hear() == local.State(state={"x": 1})


def test_steps_are_reported_before_the_question_for_memories(start):
    """
    A rank that saves asks for memories with its last step in them: that step is reported at
    once, before the question, and not at the next tick.
    """
    node = start()
    trainer, watched = node.join(0)
    trainer.finish_step(7)
    node.monitor.on_rank_message(watched, local.AskState(step=7, number=1))

    report, asked = node.sent[-2:]
    assert [sample.step for sample in report.samples] == [7]
    assert isinstance(asked, job.StateAsked)


def test_rank_that_went_back_starts_afresh(start):
    """
    What a rank did before it went back is reported first; then it is answered, and the same
    breach at the same step is found again, while its clocks are watched on.
    """
    node = start()
    trainer, watched = node.join(0)
    trainer.finish_step(3, loss=float("nan"))
    node.monitor.on_tick(now_s())
    trainer.finish_step(4, loss=float("nan"))
    node.monitor.on_rank_message(watched, local.WentBack(number=5, to_step=2, state={"a": 1}))
    trainer.finish_step(3, loss=float("nan"))
    node.monitor.on_tick(now_s())

    kinds = [
        type(message).__name__
        for message in node.sent
        if isinstance(message, job.Report | job.RankWentBack)
    ]
    assert kinds == ["Report", "Report", "RankWentBack", "Report"]
    (back,) = node.of_kind(job.RankWentBack)
    assert (back.rank, back.to_step, back.state) == (0, 2, {"a": 1})
    assert trainer.hear() == local.Taken(number=5)
    found = [plain["step"] for report in node.of_kind(job.Report) for plain in report.findings]
    assert found == [3, 3]


def test_rank_may_ask_what_a_decision_is_for(start):
    """
    The steps that a decision is about stand in the rank's block before it is published; the
    reason is told when it asks, and only for the decision that it means.
    """
    node = start()
    trainer, watched = node.join(0)
    node.monitor.on_message(job.Hold(number=2))
    node.monitor.on_message(
        job.Schedule(
            number=2, step=9, action=5, rule="x", rank=3, reason="y", onset_step=7, alarm_step=8
        )
    )
    for decision in (2, 1):
        question = local.AskDecision(number=10 + decision, decision=decision)
        node.monitor.on_rank_message(watched, question)

    words = trainer.block.words
    assert [words[word] for word in (Word.ONSET_STEP, Word.ALARM_STEP)] == [7, 8]
    assert trainer.hear() == local.Decided(number=12, decision=2, rule="x", rank=3, reason="y")
    assert trainer.hear() == local.Decided(number=11, decision=0)
