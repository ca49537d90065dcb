"""What one node's monitor costs: memory and processor time, beside 8 ranks at 1 step/s.

The ranks are real to the monitor: each is a process with a block, a ring and a link. They
take the phases of a step and sleep in between. Before it is measured every ring is filled
once, so that the monitor has touched all the memory it ever will. The monitor runs as in a
job, with the coordinator beside it. Prints a Markdown page.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from _machine import heading
from _runs import scratch

from slav1.contract import Contract
from slav1.phase import Phase
from slav1.recorder import layout
from slav1.session import RunSettings, Session, join

# Share of a step that each phase takes.
PHASES = (
    (Phase.DATA, 0.05),
    (Phase.FORWARD, 0.3),
    (Phase.BACKWARD, 0.55),
    (Phase.OPTIMIZER, 0.05),
    (Phase.BETWEEN, 0.05),
)
FILL_S = 8.0
MARGIN_S = 5.0


class Cost(NamedTuple):
    """What the monitor took."""

    step_s: float
    rss_mib: float
    unshared_mib: float
    cpu_percent: float


class Tickets:
    """The ticket travels through a queue."""

    def __init__(self, queue: Any, num_others: int) -> None:
        self._queue = queue
        self._num_others = num_others

    def publish(self, ticket: bytes) -> None:
        for _ in range(self._num_others):
            self._queue.put(ticket)

    def fetch(self, limit_s: float) -> bytes:
        ticket: bytes = self._queue.get(timeout=limit_s)
        return ticket


def run_rank(
    rank: int, options: argparse.Namespace, step_s: float, run_dir: Path, queues: Any
) -> None:
    """One rank: joins, fills its ring, steps until the time is over, leaves."""
    queue, out = queues
    contract = Contract.level(options.level)
    session = join(
        RunSettings(
            contract=contract,
            run_dir=run_dir,
            rank=rank,
            local_rank=rank,
            world_size=options.ranks,
        ),
        Tickets(queue, options.ranks - 1),
    )
    if rank == 0:
        out.put(os.getpid())
    num_slots = contract.monitor.ring_slots
    began_s = time.monotonic()
    for number in range(num_slots):
        end_step(session, number)
        time.sleep(max(0.0, began_s + FILL_S * number / num_slots - time.monotonic()))
    number = num_slots
    while time.monotonic() < began_s + FILL_S + options.seconds + 2 * MARGIN_S:
        for phase, share in PHASES:
            session.recorder.enter(int(phase))
            time.sleep(step_s * share)
        end_step(session, number)
        number += 1
    session.leave("finished")


def end_step(session: Session, number: int) -> None:
    flags = layout.HAS_LOSS
    session.recorder.publish(session.recorder.end_step(number, loss=2.0, batch=number, flags=flags))
    session.at_boundary(number)


def cost_of(options: argparse.Namespace, step_s: float) -> Cost:
    """Runs the ranks and looks at the monitor from outside."""
    context = multiprocessing.get_context("spawn")
    queue, out = context.Queue(), context.Queue()
    with scratch() as folder:
        ranks = [
            context.Process(target=run_rank, args=(rank, options, step_s, folder, (queue, out)))
            for rank in range(options.ranks)
        ]
        for process in ranks:
            process.start()
        starter = psutil.Process(out.get(timeout=60))
        monitor = next(p for p in starter.children() if "slav1.monitor" in p.cmdline())
        time.sleep(FILL_S + MARGIN_S)
        began_s, before_s = time.monotonic(), cpu_s_of(monitor)
        rss = watched_peak(lambda: monitor.memory_info().rss, options.seconds)
        took_s, spent_s = time.monotonic() - began_s, cpu_s_of(monitor) - before_s
        unshared = monitor.memory_full_info().uss
        for process in ranks:
            process.join()
    return Cost(step_s, rss / 2**20, unshared / 2**20, 100 * spent_s / took_s)


def cpu_s_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def watched_peak(read: Callable[[], int], seconds: float) -> int:
    """The largest reading, once a second."""
    peak = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        peak = max(peak, read())
        time.sleep(1.0)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8, help="ranks of the node")
    parser.add_argument("--steps-s", type=float, nargs="+", default=[1.0, 0.1], help="step times")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure each")
    parser.add_argument("--level", default="L1", help="level of the contract")
    options = parser.parse_args()
    print(heading("What a node's monitor costs"))
    print(
        f"{options.ranks} ranks on one node, contract {options.level}, coordinator beside it, "
        f"{options.seconds:g} s each, rings full. Resident memory holds what the monitor shares "
        "with others: the interpreter, libraries, and the rings of the ranks.\n"
    )
    print("| step | resident, peak | of its own | processor, share of one core |")
    print("| --- | --- | --- | --- |")
    for step_s in options.steps_s:
        cost = cost_of(options, step_s)
        print(
            f"| {cost.step_s:g} s | {cost.rss_mib:.1f} MiB | {cost.unshared_mib:.1f} MiB "
            f"| {cost.cpu_percent:.2f} % |"
        )


if __name__ == "__main__":
    sys.exit(main())
