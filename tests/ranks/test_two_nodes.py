"""Two nodes, each with a monitor of its own, on one host."""

import re
import signal
import socket
from typing import Any

import psutil
import pytest

from ._bad_days import (
    UNTIL_GO,
    go,
    is_monitor,
    ledger,
    messages,
    monitors_of,
    said,
    start,
    until,
)

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

TWO_NODES = {
    rank: {"LOCAL_RANK": "0", "TEST_NODE": str(rank), "TEST_NUM_NODES": "2"} for rank in (0, 1)
}
QUICK = {
    "monitor": {"grace_s": 0.5},
    "hang": {"limit_s": 2.0, "first_step_limit_s": 2.0},
}

STANDS_STILL = """
from _trainee import *
session = join_run()
say("joined")
train_until(session, "stand still")
say("standing")
# A line of torch, as far as its name tells: it waits for the other ranks.
exec(compile("import time; time.sleep(60)", "/torch/distributed/c10d.py", "exec"))
"""


def start_two(launch: Any, script: str, run_dir: Any, **others: Any) -> Any:
    return start(launch, script, run_dir, num_ranks=2, env_of=TWO_NODES, **others)


def own_address() -> str:
    """An address of this host that others can reach; the test is skipped without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError as error:
            pytest.skip(f"this host has no way out: {error}")
        return str(probe.getsockname()[0])


@pytest.mark.thorough
def test_node_that_cannot_reach_the_coordinator_says_so(launch, tmp_path):
    """
    A node from which the coordinator can't be reached ends with an error that names the
    addresses it tried and what to set, and its rank takes no step.
    """
    script = """
    from _trainee import *
    import slav1.session.open_run as module
    module.hosts_to_try = lambda bound, environment: ["192.0.2.55"]
    if os.environ["RANK"] == "1":
        os.environ["MASTER_ADDR"] = "192.0.2.66"
    session = join_run()
    say("joined")
    train(session, num_steps=5)
    session.leave("finished")
    """
    with start_two(launch, script, tmp_path) as job:
        ended = job.wait()

    assert ended.exit_codes == {0: 0, 1: 1}, ended
    assert "joined" not in ended.out[1]
    assert "Node 1:" in ended.err[1] and "MASTER_ADDR" in ended.err[1]
    assert "tcp://192.0.2.55:" in ended.err[1] and "tcp://192.0.2.66:" in ended.err[1]


SILENT = re.compile("The monitor of node 1 has said nothing")


def monitor_of(job: Any, rank: int) -> psutil.Process:
    children = psutil.Process(job.processes[rank].pid).children()
    return next(child for child in children if is_monitor(child))


@pytest.mark.parametrize(
    "master", [pytest.param("loopback", marks=pytest.mark.thorough), "own address"]
)
def test_nodes_stop_at_the_same_step(launch, tmp_path, master):
    """
    The samples of two nodes are put together, and what is found on one of them stops the
    ranks of both at the end of the same step, whatever address rank 0 is known by.
    """
    script = """
    from _trainee import *
    session = join_run()
    is_bad = os.environ["RANK"] == "1"
    stopped = train(session, num_steps=200,
                    loss_at=lambda step: math.nan if is_bad and step == 30 else 1.0)
    say("stopped at", stopped)
    session.leave("finished")
    """
    env = {"MASTER_ADDR": "127.0.0.1" if master == "loopback" else own_address()}
    with start_two(launch, script, tmp_path, env=env) as job:
        until(lambda: len(monitors_of(job)) == 2, "two monitors")
        ended = job.wait()

    entries = ledger(tmp_path)
    assert ended.succeeded(), ended
    assert ended.out[0] == ended.out[1] != "stopped at None\n"
    assert [entry.rank for entry in entries if entry.kind == "breach"][:1] == [1]
    seen = {entry.rule: entry.evidence for entry in entries if entry.kind == "verdict"}
    assert seen["loss_variance"]["num_samples"] >= 30
    assert {path.name for path in (tmp_path / "run").glob("ring-*")} == {"ring-0.bin", "ring-1.bin"}


@pytest.mark.thorough
def test_node_without_its_monitor_is_told_and_training_goes_on(launch, tmp_path):
    """
    When the monitor of a node is killed its ranks train on; the coordinator tells that
    nobody watches them, ends nobody, and the run ends in good order.
    """
    with start_two(launch, UNTIL_GO, tmp_path, contract=QUICK) as job:
        job.wait_for("joined", rank=0)
        job.wait_for("joined", rank=1)
        monitor_of(job, 1).kill()
        until(lambda: any(map(SILENT.match, messages(ledger(tmp_path), "notice"))), "node 1's word")
        ended = go(job)

    assert ended.succeeded(), ended
    assert len(said(ended, 1)) == 1 and "has ended before its ranks" in said(ended, 1)[0]
    assert messages(ledger(tmp_path), "breach") == []
    assert messages(ledger(tmp_path), "end") == ["Training ended."]


def test_lost_node_is_found_and_the_job_ended(launch, tmp_path):
    """
    When a whole node is gone and the ranks of the other one stand still, the node is named
    as lost and every process of the job is ended with an error.
    """
    with start_two(launch, STANDS_STILL, tmp_path, contract=QUICK) as job:
        job.wait_for("joined", rank=0)
        job.wait_for("joined", rank=1)
        monitors = [monitor_of(job, rank) for rank in (0, 1)]
        monitors[1].kill()
        job.signal(1, signal.SIGKILL)
        (job.folder / "stand still").touch()
        ended = job.wait()
        until(lambda: not is_monitor(monitors[0]), "the end of the monitor", limit_s=8.0)

    entries = ledger(tmp_path)
    breaches = [entry for entry in entries if entry.kind == "breach" and entry.rule == "liveness"]
    assert ended.exit_codes == {0: -signal.SIGTERM, 1: -signal.SIGKILL}
    assert [entry.rank for entry in breaches] == [1]
    assert "Node 1 (ranks 1) is lost" in (breaches[0].message or "")
    assert "The contract ended the job: Node 1" in messages(entries, "end")[0]


@pytest.mark.thorough
def test_node_that_lost_the_coordinator_ends_by_itself(launch, tmp_path):
    """
    When the coordinator's node is gone, the other node's monitor ends ranks that stand
    still, and then itself.
    """
    with start_two(launch, STANDS_STILL, tmp_path, contract=QUICK) as job:
        job.wait_for("joined", rank=0)
        job.wait_for("joined", rank=1)
        monitors = [monitor_of(job, rank) for rank in (0, 1)]
        monitors[0].kill()
        job.signal(0, signal.SIGKILL)
        (job.folder / "stand still").touch()
        ended = job.wait()
        until(lambda: not is_monitor(monitors[1]), "the end of the monitor", limit_s=8.0)

    assert ended.exit_codes == {0: -signal.SIGKILL, 1: -signal.SIGTERM}
    told = said(ended, 1)
    assert "coordinator beside rank 0 is silent" in told[0]
    assert "ends its ranks without the coordinator" in told[1]


def test_hang_on_another_node_is_attributed(launch, tmp_path):
    """
    With a real process group over two nodes a rank that hangs on the second one is named,
    with its line, while the other waits for it; all processes of both nodes are ended.
    """
    script = """
    import time
    from datetime import timedelta
    import torch.distributed as dist
    from torch import ones
    from _trainee import *
    from slav1.session.rendezvous import job_rendezvous
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    session = join(RunSettings(contract=contract(), run_dir=Path(os.environ["TEST_RUN_DIR"]),
                               rank=rank, local_rank=0, world_size=2, node=rank, num_nodes=2),
                   job_rendezvous())
    def step_together(step):
        if rank == 1 and step == 20:
            time.sleep(60)
        session.recorder.enter(int(Phase.BACKWARD))
        dist.all_reduce(ones(1))
    train(session, num_steps=1000, before_boundary=step_together)
    """
    with start_two(launch, script, tmp_path, contract=QUICK) as job:
        ended = job.wait()
        until(lambda: messages(ledger(tmp_path), "end"), "the last line")

    hangs = [entry for entry in ledger(tmp_path) if entry.kind == "breach"]
    assert all(ended.exit_codes.values()), ended
    assert {(entry.rule, entry.rank) for entry in hangs} == {("hang", 1)}
    assert any("step_together" in frame for frame in hangs[0].evidence["stack"])
    assert "The contract ended the job: Rank 1" in messages(ledger(tmp_path), "end")[0]
