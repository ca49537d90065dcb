"""The health probe over real ranks."""

import json

import pytest

pytestmark = [
    *(pytest.mark.ranks, pytest.mark.slow),
    pytest.mark.usefixtures("fork_server"),
]

TIMEOUT_S = 3.0
SLACK_S = 2.5

# Every rank prints one line of JSON: the report or the error, and how long it took.
SCRIPT = """
import json, os, signal, sys, threading, time
import torch
import torch.distributed as dist
from slav1.startup import HealthProbeError, _channels, validate_nccl_health

rank, trouble = int(os.environ["RANK"]), os.environ.get("TROUBLE", "")
backend = os.environ.get("BACKEND", "gloo")
if backend == "nccl":
    torch.cuda.set_device(rank)
dist.init_process_group(backend)
world_size = dist.get_world_size()
if world_size > 2:
    dist.new_group([0, 1], group_desc="pair")
    dist.new_group([world_size - 1], group_desc="alone")
if backend != "nccl":
    dist.barrier()
is_culprit = rank == int(os.environ.get("CULPRIT", -1))
if is_culprit and trouble == "absent":
    time.sleep(60)
if rank == int(os.environ.get("LATE", -1)):
    time.sleep(1.5)
if is_culprit and trouble == "wrong":
    _channels.values_of = lambda rank: [1] * _channels.NUM_VALUES
if is_culprit and trouble in ("stopped", "killed"):
    def values_of(rank):
        os.kill(os.getpid(), signal.SIGSTOP if trouble == "stopped" else signal.SIGKILL)
    _channels.values_of = values_of
begin_s = time.monotonic()
try:
    report = validate_nccl_health(timeout_sec=float(os.environ["TIMEOUT_S"]))
    said = {"groups": [[g.group, g.backend, g.device, g.ranks] for g in report.groups]}
    said |= {"text": str(report), "is_nccl": report.is_nccl_probed}
except HealthProbeError as error:
    said = {name: getattr(error, name) for name in ("group", "backend", "silent", "answered")}
    said |= {"reason": error.reason, "found_by": error.found_by, "text": str(error)}
said["seconds_s"] = time.monotonic() - begin_s
said["threads"] = [t.name for t in threading.enumerate() if t.name.startswith("slav1 /")]
print(json.dumps(said), flush=True)
if "error" not in said and "groups" in said:
    dist.destroy_process_group()
"""


def said(ended, rank):
    """What a rank printed."""
    assert ended.out[rank], str(ended)
    return json.loads(ended.out[rank].splitlines()[-1])


def same_on_all(ended, ranks):
    """The error that all of ``ranks`` printed alike."""
    found = [said(ended, rank) for rank in ranks]
    alike = [{k: v for k, v in one.items() if k not in ("seconds_s", "threads")} for one in found]
    assert all("silent" in one for one in alike), str(ended)
    assert all(one == alike[0] for one in alike), str(ended)
    return alike[0]


def test_every_group_of_a_healthy_job_answers(launch):
    """
    Each rank's report names its own groups and no other's, and that NCCL was not probed;
    rank 0 logs it.
    """
    ended = launch(SCRIPT, num_ranks=3, env={"TIMEOUT_S": "20"})

    assert ended.succeeded(), str(ended)
    everyone = ["default", "gloo", "cpu", [0, 1, 2]]
    pair, alone = ["pair", "gloo", "cpu", [0, 1]], ["alone", "gloo", "cpu", [2]]
    groups = [said(ended, rank)["groups"] for rank in range(3)]
    assert groups == [[everyone, pair], [everyone, pair], [everyone, alone]]
    assert not said(ended, 0)["is_nccl"]
    assert "NCCL was not exercised" in ended.err[0]
    assert ended.err[1] == ""
    assert said(ended, 0)["threads"] == []


@pytest.mark.parametrize("culprit", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_a_rank_that_does_not_take_part_is_named(launch, culprit):
    """
    Ranks that wait for one that never calls end soon after the time-out, with the same
    error, which names the silent rank; their processes can end.
    """
    with launch.start(
        SCRIPT,
        num_ranks=3,
        env={"TIMEOUT_S": str(TIMEOUT_S), "TROUBLE": "absent", "CULPRIT": str(culprit)},
    ) as job:
        others = [rank for rank in range(3) if rank != culprit]
        for rank in others:
            job.wait_for('"silent"', rank=rank)
            job.processes[rank].wait(timeout=20)
        job.signal(culprit, 9)
        ended = job.wait()

    error = same_on_all(ended, others)
    assert (error["group"], error["backend"]) == ("default", "gloo")
    assert (error["answered"], error["silent"]) == (others, [culprit])
    assert all(ended.exit_codes[rank] == 0 for rank in others), str(ended)
    assert all(
        TIMEOUT_S <= said(ended, rank)["seconds_s"] < TIMEOUT_S + SLACK_S for rank in others[:1]
    )


@pytest.mark.thorough
def test_a_rank_that_is_late_but_in_time_is_waited_for(launch):
    """
    A rank that calls within the time-out makes the probe longer, not fail.
    """
    ended = launch(SCRIPT, env={"TIMEOUT_S": "20", "LATE": "1"})

    assert ended.succeeded(), str(ended)
    assert said(ended, 0)["seconds_s"] > 1


@pytest.mark.thorough
def test_a_rank_that_came_later_is_not_blamed(launch):
    """
    When the first rank gives up, one that came later and waits like it answers the roll
    call; only the rank that never came is silent.
    """
    env = {"TIMEOUT_S": "4", "TROUBLE": "absent", "CULPRIT": "2", "LATE": "1"}
    with launch.start(SCRIPT, num_ranks=3, env=env) as job:
        for rank in (0, 1):
            job.processes[rank].wait(timeout=50)
        job.signal(2, 9)
        ended = job.wait()

    error = same_on_all(ended, [0, 1])
    assert (error["answered"], error["silent"], error["found_by"]) == ([0, 1], [2], 0)
    assert said(ended, 1)["seconds_s"] < 4


@pytest.mark.thorough
def test_a_wrong_sum_fails_on_all_ranks(launch):
    """
    If one rank's numbers arrive wrongly, all ranks raise the same error, in one breath.
    """
    ended = launch(SCRIPT, num_ranks=3, env={"TIMEOUT_S": "20", "TROUBLE": "wrong", "CULPRIT": "1"})

    error = same_on_all(ended, range(3))
    assert "the all-reduce gave 5 for number 0 and must give 6" in error["reason"]
    assert (error["answered"], error["silent"]) == ([0, 1, 2], [])
    assert "All ranks are there" in error["text"]


@pytest.mark.parametrize("trouble", [pytest.param("stopped", marks=pytest.mark.thorough), "killed"])
def test_a_rank_that_dies_or_stops_in_the_middle_is_named(launch, trouble):
    """
    A rank that took the call and then died or stopped does not answer the roll call.
    """
    with launch.start(
        SCRIPT,
        num_ranks=3,
        env={"TIMEOUT_S": str(TIMEOUT_S), "TROUBLE": trouble, "CULPRIT": "2"},
    ) as job:
        for rank in (0, 1):
            job.processes[rank].wait(timeout=40)
        if trouble == "stopped":
            job.signal(2, 9)
        ended = job.wait()

    error = same_on_all(ended, [0, 1])
    assert (error["answered"], error["silent"]) == ([0, 1], [2])
    assert max(said(ended, rank)["seconds_s"] for rank in (0, 1)) < TIMEOUT_S + SLACK_S


@pytest.mark.thorough
def test_a_stopped_store_host_holds_nobody(launch):
    """
    If the stopped rank is the host of the store, the others end in time all the same and
    say that the store is out of reach.
    """
    with launch.start(
        SCRIPT, env={"TIMEOUT_S": str(TIMEOUT_S), "TROUBLE": "stopped", "CULPRIT": "0"}
    ) as job:
        job.wait_for('"silent"', rank=1)
        job.signal(0, 9)
        ended = job.wait()

    assert said(ended, 1)["silent"] == [0]
    assert "the job's store" in said(ended, 1)["reason"]
    assert said(ended, 1)["seconds_s"] < TIMEOUT_S + SLACK_S


def test_without_a_process_group_it_says_what_is_missing(launch):
    """
    Called before init_process_group, the error says to call it after.
    """
    ended = launch("from slav1.startup import validate_nccl_health; validate_nccl_health()")

    assert "call it after torch.distributed.init_process_group()" in ended.err[0]


@pytest.fixture
def num_gpus():
    torch = pytest.importorskip("torch")
    return torch.cuda.device_count()


@pytest.mark.gpu
def test_nccl_answers(launch, num_gpus):
    """
    On GPUs the probe's tensors are on the devices and the report says that NCCL answered.
    """
    if num_gpus < 1:
        pytest.skip("needs a GPU with NCCL, and torch sees none here")
    num_ranks = min(2, num_gpus)
    ended = launch(
        SCRIPT, num_ranks=num_ranks, env={"TIMEOUT_S": "60", "BACKEND": "nccl"}, timeout_s=120
    )

    assert ended.succeeded(), str(ended)
    for rank in range(num_ranks):
        expected = [["default", "nccl", f"cuda:{rank}", list(range(num_ranks))]]
        assert said(ended, rank)["groups"] == expected
        assert said(ended, rank)["is_nccl"]


@pytest.mark.gpu
@pytest.mark.parametrize("trouble", ["absent", "stopped", "wrong"])
def test_nccl_trouble_is_named(launch, num_gpus, trouble):
    """
    With NCCL, too, a rank that is absent, stopped or wrong is found in time, though the
    first collective's set-up blocks inside torch; and the process can end.
    """
    if num_gpus < 2:
        pytest.skip(f"needs 2 GPUs with NCCL, and torch sees {num_gpus} here")
    env = {"TIMEOUT_S": "20", "BACKEND": "nccl", "TROUBLE": trouble, "CULPRIT": "1"}
    with launch.start(SCRIPT, env=env, timeout_s=120) as job:
        job.wait_for('"silent"', rank=0)
        job.processes[0].wait(timeout=60)
        if trouble != "wrong":
            job.signal(1, 9)
        ended = job.wait()

    assert said(ended, 0)["backend"] == "nccl"
    assert said(ended, 0)["silent"] == ([] if trouble == "wrong" else [1])
    assert said(ended, 0)["seconds_s"] < 20 + SLACK_S
