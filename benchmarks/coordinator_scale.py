"""What one coordinator costs a large job: 128 simulated monitors, 1,024 ranks, 1 step/s.

The coordinator is the real one, with its port, keys, detectors and ledger, in a process of
its own. Each simulated monitor is a real encrypted connection that says what a real one
says: a report of 8 samples a step, and answers to every hold and schedule. A decision is
asked for by one monitor's finding; what is measured begins with that report and ends when
the last monitor has the schedule, and when the last one is released because all ranks have
confirmed. Prints a Markdown page.
"""

import argparse
import multiprocessing
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import zmq
from _machine import heading, quantile
from _runs import scratch

from slav1.breach import Breach
from slav1.contract import Contract
from slav1.coordinator import messages
from slav1.coordinator.dialer import Dialer
from slav1.coordinator.transport import KeyPair, new_keys
from slav1.monitor.config import MonitorConfig
from slav1.monitor.events import Events, Mishaps
from slav1.monitor.job_end import JobEnd
from slav1.sample import Sample

RANKS_OF_NODE = 8
TICK_S = 0.05
SPREAD_S = 0.2
"""Within so much time of each other all nodes report a step, in seconds."""


class Keys(NamedTuple):
    """Both ends' keys."""

    server: KeyPair
    client: KeyPair


def run_coordinator(config: MonitorConfig, pipe: Any) -> None:
    """The process that is measured: what the monitor beside rank 0 runs for the job."""
    # What it tells people is not what is measured.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    context: Any = zmq.Context()
    job_end = JobEnd(context, config, Contract.from_dict(config.contract))
    events = Events(Mishaps(job_end.tell))
    job_end.watch(events)
    pipe.send(job_end.address)
    next_tick_s = time.monotonic()
    while not pipe.poll():
        events.wait(max(0.0, next_tick_s - time.monotonic()))
        if time.monotonic() >= next_tick_s:
            job_end.on_tick(time.monotonic())
            next_tick_s = time.monotonic() + TICK_S
    job_end.close()
    context.destroy(linger=0)
    job_end.let_go()


class Job:
    """A coordinator's process and the monitors that call it."""

    def __init__(self, num_nodes: int, folder: Path) -> None:
        self.num_nodes = num_nodes
        keys = Keys(new_keys(), new_keys())
        config = config_of(num_nodes, folder, keys)
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=run_coordinator, args=(config, theirs))
        self._process.start()
        address = self._pipe.recv()
        self.context: Any = zmq.Context(4)
        self.context.max_sockets = 4 * num_nodes + 16
        self._poller = zmq.Poller()
        self.nodes: dict[Any, tuple[int, Dialer]] = {}
        for node in range(num_nodes):
            dialer = Dialer(
                self.context,
                node=node,
                address=address,
                keys=keys.client,
                server=keys.server.public,
            )
            self.nodes[dialer.socket] = (node, dialer)
            self._poller.register(dialer.socket, zmq.POLLIN)
            dialer.send(messages.NodeHello(node=node))
            for rank in ranks_of(node):
                dialer.send(messages.RankJoined(rank=rank))

    def await_all(self, limit_s: float = 30.0) -> None:
        """Waits until every monitor has heard from the coordinator, so that all have joined."""
        heard: set[int] = set()
        end_s = time.monotonic() + limit_s
        while len(heard) < self.num_nodes:
            if time.monotonic() > end_s:
                raise TimeoutError(f"{len(heard)} of {self.num_nodes} monitors are connected")
            heard |= {node for node, _, _ in self.receive(0.1)}

    @property
    def coordinator(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def receive(self, limit_s: float) -> list[tuple[int, Dialer, Any]]:
        """What has come to the monitors, after at most so many seconds."""
        found = []
        for socket, _ in self._poller.poll(max(0, int(limit_s * 1000))):
            node, dialer = self.nodes[socket]
            while (message := dialer.receive()) is not None:
                found.append((node, dialer, message))
        return found

    def report(self, step: int) -> None:
        """All nodes report one step, each at its own moment."""
        began_s = time.monotonic()
        order = list(self.nodes.values())
        random.shuffle(order)
        for number, (node, dialer) in enumerate(order):
            due_s = began_s + SPREAD_S * number / len(order)
            self.receive(max(0.0, due_s - time.monotonic()))
            dialer.send(report_of(node, step))

    def close(self) -> None:
        self._pipe.send("end")
        self._process.join()
        for _, dialer in self.nodes.values():
            dialer.close()
        self.context.destroy(linger=0)


def config_of(num_nodes: int, folder: Path, keys: Keys) -> MonitorConfig:
    return MonitorConfig(
        contract=Contract.level("L3").to_dict(),
        run_folder=str(folder),
        attempt=0,
        token="0" * 64,
        node=0,
        num_nodes=num_nodes,
        world_size=num_nodes * RANKS_OF_NODE,
        parent_pid=os.getpid(),
        server_public=keys.server.public,
        server_secret=keys.server.secret,
        client_public=keys.client.public,
        client_secret=keys.client.secret,
        host="127.0.0.1",
    )


def ranks_of(node: int) -> range:
    return range(node * RANKS_OF_NODE, (node + 1) * RANKS_OF_NODE)


def report_of(node: int, step: int, *findings: Breach) -> messages.Report:
    samples = [
        Sample(
            rank=rank,
            step=step,
            time_s=time.monotonic(),
            loss=2.0 + random.random() * 0.01,
            step_time_s=1.0,
            data_s=0.05,
            forward_s=0.3 + random.random() * 0.01,
            backward_s=0.4,
            sync_s=0.15,
            optimizer_s=0.05,
            batch=step,
        )
        for rank in ranks_of(node)
    ]
    packed = [messages.pack_breach(finding) for finding in findings]
    return messages.Report(samples=samples, findings=packed)


def steady(job: Job, seconds: float) -> tuple[float, float]:
    """One step a second; returns processor share in percent and peak memory in MiB."""
    warmup = 5
    process, peak = job.coordinator, 0
    before_s = began_s = 0.0
    for step in range(warmup + int(seconds)):
        if step == warmup:
            times = process.cpu_times()
            before_s, began_s = times.user + times.system, time.monotonic()
        step_began_s = time.monotonic()
        job.report(step)
        while time.monotonic() - step_began_s < 1.0:
            job.receive(step_began_s + 1.0 - time.monotonic())
        peak = max(peak, process.memory_info().rss)
    times = process.cpu_times()
    spent_s = times.user + times.system - before_s
    return 100 * spent_s / (time.monotonic() - began_s), peak / 2**20


def decide(job: Job) -> tuple[float, float]:
    """One decision; returns seconds to the last schedule and to the last release."""
    job.report(0)
    time.sleep(0.3)
    node, dialer = next(iter(job.nodes.values()))
    breach = Breach(
        rule="non_finite",
        rank=0,
        step=1,
        statistic=None,
        limit=None,
        unit="",
        message="The loss of rank 0 was not finite.",
    )
    began_s = time.monotonic()
    dialer.send(report_of(node, 1, breach))
    scheduled_s, num_scheduled, num_released = 0.0, 0, 0
    while num_released < job.num_nodes:
        if time.monotonic() - began_s > 30:
            raise TimeoutError(f"{num_scheduled} schedules, {num_released} releases in 30 s")
        for number, caller, message in job.receive(1.0):
            if isinstance(message, messages.Hold):
                caller.send(messages.Acknowledged(number=message.number, step=1))
            elif isinstance(message, messages.Schedule):
                num_scheduled += 1
                scheduled_s = time.monotonic() - began_s
                confirm(caller, number, message)
            elif isinstance(message, messages.Release):
                num_released += 1
    return scheduled_s, time.monotonic() - began_s


def confirm(caller: Dialer, node: int, schedule: messages.Schedule) -> None:
    """All ranks of a node carried a decision out."""
    for rank in ranks_of(node):
        caller.send(
            messages.CarriedOut(
                number=schedule.number, rank=rank, step=schedule.step, latency_s=0.001
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=128, help="simulated monitors")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure")
    parser.add_argument("--decisions", type=int, default=20, help="decisions to time")
    options = parser.parse_args()
    schedules, releases = [], []
    for number in range(options.decisions + 1):
        with scratch() as folder:
            job = Job(options.nodes, folder)
            try:
                job.await_all()
                if number == 0:
                    share, peak_mib = steady(job, options.seconds)
                else:
                    scheduled_s, released_s = decide(job)
                    schedules.append(scheduled_s * 1e3)
                    releases.append(released_s * 1e3)
            finally:
                job.close()
    num_ranks = options.nodes * RANKS_OF_NODE
    print(heading("A coordinator for many nodes"))
    print(
        f"{options.nodes} simulated monitors, {num_ranks} ranks, contract L3. The monitors run in "
        "one process on the same machine and take their share of it.\n"
    )
    print("| what | figure |")
    print("| --- | --- |")
    print(f"| processor, share of one core, at 1 step/s | {share:.1f} % |")
    print(f"| resident, peak | {peak_mib:.1f} MiB |")
    for name, values in (("last schedule", schedules), ("last release", releases)):
        if values:
            print(
                f"| finding to {name}, {len(values)} decisions | median "
                f"{quantile(values, 0.5):.0f} ms, longest {max(values):.0f} ms |"
            )


if __name__ == "__main__":
    sys.exit(main())
