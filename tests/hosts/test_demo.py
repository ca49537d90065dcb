"""The demo as a user runs it: real processes, every fault, and nothing left behind."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean

import psutil
import pytest

from slav1.recorder.ring import read_ring_file

# A loaded machine takes a minute to import PyTorch; a quiet one needs 20 s for a whole demo.
LIMIT_S = 270.0
RUN_SLA = "from slav1.cli import main; main()"

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

BACKENDS = ("lightning", "accelerate")
both_backends = pytest.mark.parametrize("backend", BACKENDS)


def start(out, *words):
    command = [sys.executable, "-c", RUN_SLA, "demo", "--out", str(out), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    output, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, output, errors


def demo(out, *words):
    """Exit status, ledger lines and summary of a demo that prints JSON."""
    status, output, errors = finish(start(out, "--json", *words))
    lines = [json.loads(line) for line in output.splitlines()]
    assert lines, errors
    return status, lines[:-1], lines[-1]


def processes_that_write_into(out):
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "status"])
        if str(out) in (process.info["cmdline"] or [])
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def mean_loss(summary, steps):
    rings = sorted(Path(summary["ledger"]).parent.glob("ring-*.bin"))
    assert len(rings) == 2
    return mean(sample.loss for ring in rings for sample in read_ring_file(ring)[steps])


@pytest.mark.parametrize(
    "words",
    [(), pytest.param(("--backend", "accelerate"), marks=pytest.mark.thorough)],
    ids=["default", "accelerate"],
)
def test_a_spike_takes_all_ranks_back(tmp_path, words):
    """
    The default demo, of either host, names the rank that got bad batches; all ranks go back to
    a checkpoint from before them at the end of one step, leave the batches out, and make all
    steps.
    """
    status, lines, summary = demo(tmp_path, *words)

    assert (status, summary["problems"]) == (0, [])
    assert (summary["found_rule"], summary["found_rank"]) == ("loss_variance", 1)
    assert 200 <= summary["found_step"] < 210
    assert summary["action"] == "rollback"
    assert set(summary["acted_at_step"]) == {"0", "1"}
    assert len(set(summary["acted_at_step"].values())) == 1
    assert summary["recovered_at_step"] == summary["found_step"] + 1
    assert (summary["exit_status"], summary["num_processes_left"]) == (0, 0)
    restored = [line for line in lines if line["kind"] == "restored"]
    assert {line["step"] for line in restored} == {199}
    assert [line["message"] for line in lines if line["kind"] == "end"] == ["Training ended."]
    assert Path(summary["ledger"]).read_text().splitlines() == [json.dumps(line) for line in lines]
    assert mean_loss(summary, slice(0, 1)) > 4.3
    assert mean_loss(summary, slice(-20, None)) < 2.5


def test_a_nan_is_left_out(tmp_path):
    """
    A loss of one rank that is no number leaves the update out on all ranks of an Accelerate
    job, with nothing else of the demo's changed.
    """
    status, lines, summary = demo(
        tmp_path, "--backend", "accelerate", "--fault", "nan", "--steps", "180"
    )

    assert (status, summary["problems"]) == (0, [])
    assert (summary["found_rule"], summary["found_rank"]) == ("non_finite", 1)
    assert summary["action"] == "skip_batches"
    assert summary["found_step"] == 120
    assert set(summary["acted_at_step"]) == {"0", "1"}
    assert len(set(summary["acted_at_step"].values())) == 1
    assert [line["message"] for line in lines if line["kind"] == "end"] == ["Training ended."]
    assert not [line for line in lines if line["kind"] == "restored"]


@pytest.mark.parametrize(
    ("fault", "rule"),
    [("hang", "hang"), ("kill", "liveness")],
)
@both_backends
@pytest.mark.thorough
def test_a_lost_rank_brings_the_job_back(tmp_path, backend, fault, rule):
    """
    A rank that hangs or dies is named with step and phase, its stack is shown if it still
    has one; every process is ended, and the job that its launcher starts again goes on
    from the last good checkpoint and makes all steps.
    """
    status, lines, summary = demo(
        tmp_path, "--backend", backend, "--fault", fault, "--steps", "120"
    )

    assert (status, summary["problems"]) == (0, [])
    assert (summary["found_rule"], summary["found_rank"]) == (rule, 1)
    assert (summary["found_step"], summary["found_phase"]) == (80, "forward")
    assert bool(summary["stack"]) == (fault == "hang")
    assert (summary["recovered_at_step"], summary["exit_status"]) == (81, 0)
    assert summary["recovered_after_s"] > 0
    assert [line["attempt"] for line in lines if line["kind"] == "start"] == [0, 1]
    assert [line["step"] for line in lines if line["kind"] == "restored"] == [79]
    assert summary["num_processes_left"] == 0
    assert processes_that_write_into(tmp_path) == []


@both_backends
@pytest.mark.thorough
def test_a_leak_stops_the_run_after_a_checkpoint(tmp_path, backend):
    """
    A rank that keeps memory of every step is named with the series and the growth by step;
    all ranks stop in good order at one step, after a checkpoint that counts.
    """
    status, lines, summary = demo(tmp_path, "--backend", backend, "--fault", "leak")

    assert (status, summary["problems"]) == (0, [])
    assert (summary["found_rule"], summary["found_rank"]) == ("memory_drift", 1)
    assert summary["action"] == "stop" and summary["exit_status"] == 0
    assert len(set(summary["acted_at_step"].values())) == 1
    drifts = [line for line in lines if line["kind"] == "breach" and line["rule"] == "memory_drift"]
    assert [line["evidence"]["series"] for line in drifts] == ["host", "host"]
    assert drifts[-1]["evidence"]["kind"] == "drift"
    decision = next(line for line in lines if line["kind"] == "decision")
    assert "has just been committed" in decision["message"]


@both_backends
@pytest.mark.thorough
def test_a_bad_checkpoint_is_refused_and_training_goes_on(tmp_path, backend):
    """
    A checkpoint that reaches the disk with one wrong bit is refused before it counts and
    written once more, which is good; no rank stops for it.
    """
    status, lines, summary = demo(
        tmp_path, "--backend", backend, "--fault", "corrupt", "--steps", "160"
    )

    assert (status, summary["problems"]) == (0, [])
    rejected = [line for line in lines if line["kind"] == "checkpoint_rejected"]
    assert [line["step"] for line in rejected] == [119]
    committed = [line["step"] for line in lines if line["kind"] == "checkpoint_committed"]
    assert committed == [19, 39, 59, 79, 99, 119, 139, 159]
    assert summary["action"] is None


@both_backends
@pytest.mark.thorough
def test_a_straggler_is_named_and_training_goes_on(tmp_path, backend):
    """
    A rank that becomes slow is named, nothing is decided, and all steps are made.
    """
    status, lines, summary = demo(tmp_path, "--backend", backend, "--fault", "straggler")

    assert (status, summary["problems"]) == (0, [])
    assert (summary["found_rule"], summary["found_rank"]) == ("straggler", 1)
    assert summary["action"] is None
    assert [line["message"] for line in lines if line["kind"] == "end"] == ["Training ended."]


@both_backends
@pytest.mark.thorough
def test_replicas_that_start_apart_are_made_equal(tmp_path, backend):
    """
    A rank with other first weights is named before the first step, gets rank 0's like all
    others, and training goes on without another finding of copies that differ.
    """
    status, lines, summary = demo(
        tmp_path, "--backend", backend, "--fault", "seed", "--steps", "60"
    )

    assert (status, summary["problems"]) == (0, [])
    assert (summary["found_rule"], summary["found_rank"], summary["found_step"]) == (
        "seed_contract",
        1,
        0,
    )
    closed = [line for line in lines if line["kind"] == "incident_end"]
    assert [(line["rule"], line["step"]) for line in closed] == [("seed_contract", 0)]
    assert not [line for line in lines if line["kind"] in ("decision", "action")]


@pytest.mark.thorough
def test_two_demos_at_once_share_one_folder(tmp_path):
    """
    Two demos that are started together in one folder both come to their own end, and a
    stranger finds fault, finding, action and verdict in the text.
    """
    broken = start(tmp_path, "--fault", "nan")
    quiet = start(tmp_path, "--fault", "none", "--ranks", "1", "--steps", "150")
    status, text, _ = finish(broken)
    quiet_status, quiet_text, _ = finish(quiet)

    assert (status, quiet_status) == (0, 0), text + quiet_text
    assert sum(path.is_dir() for path in tmp_path.iterdir()) == 2
    for part in (
        "SLA_INJECT=nan:rank=1,step=120",
        "non_finite: rank 1, step 120.",
        "by rank 0, 1.",
        "exit status 0. No process is left.",
        "breached",
        "ledger.jsonl",
        "As expected.",
    ):
        assert part in text
    assert "Nothing is injected" in quiet_text
    assert "breached" not in quiet_text


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param("Files of this run", signal.SIGTERM, marks=pytest.mark.thorough),
        pytest.param(" a step;", signal.SIGINT, marks=pytest.mark.thorough),
    ],
)
def test_an_interrupt_ends_everything(tmp_path, moment, number):
    """
    Ctrl-C, or SIGTERM, ends every process within seconds, while the job still starts as
    well as in training, and the exit status tells the signal.
    """
    process = start(tmp_path)
    lines = iter(process.stdout.readline, "")
    assert any(moment in line for line in lines)
    process.send_signal(number)
    sent_s = time.monotonic()

    status, _, errors = finish(process)

    assert status == 128 + number
    assert "interrupted" in errors
    assert time.monotonic() - sent_s < 30.0
    assert processes_that_write_into(tmp_path) == []
