"""Leaks: false alarms, delays and cost of the rule memory_drift, as Markdown.

    python benchmarks/memory.py                 # everything; about half an hour on one core
    python benchmarks/memory.py --share 0.1     # a tenth of the runs
    python benchmarks/memory.py --only cost,monitor

Every trace is made up from a fixed seed (its kind and number), with known truth: a warm-up of
2 GB (tau 200 steps), 1.5 GB more for 20 steps at each evaluation (every 500), 300 MB that stay
from the first one on, four level shifts of 50 to 200 MB up or down at random steps, and noise
(the amount of normal noise of 5 MB). ``harsh`` adds an AR(0.99) wander of 14 MB, ``rss`` that
and a saw-tooth of 68 MB every 137 steps, ``walk`` a random walk of 0.5 MB a square root step.
A leak starts at step 5,000. Counts come with the one-sided 95 % bound on the rate behind them;
costs are processor time.
"""

import argparse
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from _machine import heading
from _tables import table, upper_bound

from slav1.breach import Breach, Status
from slav1.detectors import MemoryDriftLiteral, MemoryDriftSequential
from slav1.monitor.process_tree import ProcessTree
from slav1.monitor.usage_reader import UsageReader
from slav1.phase import Phase
from slav1.recorder import Block, Recorder
from slav1.sample import Sample, Usage

KINDS = ("mild", "harsh", "rss", "walk")
NUM_STEPS = 20_000
LEAK_AT = 5_000


def trace(kind: str, seed: int, num_steps: int, *, leak: float = 0.0) -> Iterator[float]:
    """Memory of each step, in MiB."""
    rng = random.Random(f"{kind} {seed}")
    wander = walk = level = 0.0
    shifts = sorted(
        (rng.randrange(200, num_steps), rng.choice((-1, 1)) * rng.uniform(50.0, 200.0))
        for _ in range(4)
    )
    for step in range(num_steps):
        while shifts and shifts[0][0] <= step:
            level += shifts.pop(0)[1]
        value = 4_000.0 - 2_000.0 * math.exp(-step / 200.0) + level + abs(rng.gauss(0.0, 5.0))
        if step >= 500:
            value += 300.0 + (1_500.0 if step % 500 < 20 else 0.0)
        if kind in ("harsh", "rss"):
            wander = 0.99 * wander + rng.gauss(0.0, 2.0)
            value += wander
        if kind == "rss":
            value += 68.0 * (step % 137) / 137.0
        if kind == "walk":
            walk += rng.gauss(0.0, 0.5)
            value += walk
        yield value + leak * max(0, step - LEAK_AT)


def samples(values: Iterable[float], *, every: int = 1) -> Iterator[Sample]:
    for step, value in enumerate(values):
        if step % every == 0:
            yield Sample(rank=0, step=step, time_s=0.2 * step, allocated_mib=value)


def usages(values: Iterable[float], *, every: int = 1) -> Iterator[Usage]:
    for step, value in enumerate(values):
        if step % every == 0:
            yield Usage(rank=0, step=step, time_s=0.2 * step, host_mib=value)


def breaches(detector: Any, events: Iterable[Any]) -> list[Breach]:
    state, found = detector.start(), []
    for event in events:
        state, breach = detector.observe(state, event)
        if breach is not None and breach.status is Status.BREACH:
            found.append(breach)
    return found


def false_alarms(share: float, *, every: int = 1) -> None:
    """Healthy runs: breaches of either grade."""

    def rows() -> Iterator[Sequence[object]]:
        for kind, num_all in (("mild", 50), ("harsh", 200), ("rss", 50), ("walk", 50)):
            num = max(1, round(num_all * share))
            kinds = {"drift": 0, "steady_rise": 0}
            for seed in range(num):
                events = samples(trace(kind, seed, NUM_STEPS), every=every)
                for breach in breaches(MemoryDriftSequential(), events):
                    kinds[str(breach.evidence["kind"])] += 1
            exposure = num * NUM_STEPS / 1e6
            yield (
                kind,
                num,
                *(f"{n} (< {upper_bound(n, exposure):.2f})" for n in kinds.values()),
            )

    table(
        f"False alarms in healthy runs of {NUM_STEPS:,} steps, a reading in {every} step(s): "
        "count (95 % bound per 1e6 steps)",
        ("trace", "runs", "to act on", "suspected only"),
        rows(),
    )


def sparse_false_alarms(share: float) -> None:
    """The same with readings as far apart as those of a device are."""
    false_alarms(share, every=5)


def literal_false_alarms(share: float) -> None:
    """The published text's own rule on the same traces."""

    def rows() -> Iterator[Sequence[object]]:
        for kind in KINDS:
            for sigmas in (1.0, 2.0):
                num = max(1, round(10 * share))
                detector = MemoryDriftLiteral(limit_sigmas=sigmas)
                false = sum(
                    len(breaches(detector, samples(trace(kind, s, NUM_STEPS)))) for s in range(num)
                )
                late = [_delay(detector, samples(_leaking(kind, s, 1.0))) for s in range(num)]
                yield kind, sigmas, f"{false / num:.1f}", *_told(late)

    table(
        "Literal rule: false alarms in a healthy run, and delay at 1 MiB a step",
        ("trace", "limit_sigmas", "false alarms per run", "found", "median steps", "longest"),
        rows(),
    )


def _leaking(kind: str, seed: int, leak: float) -> Iterator[float]:
    return trace(kind, 1_000 + seed, LEAK_AT + 9_000, leak=leak)


def _delay(detector: Any, events: Iterable[Any], kind: str | None = None) -> int | None:
    state = detector.start()
    for event in events:
        state, breach = detector.observe(state, event)
        is_meant = breach is not None and breach.status is Status.BREACH and event.step >= LEAK_AT
        if is_meant and kind in (None, breach.evidence["kind"]):
            return int(event.step) - LEAK_AT
    return None


def _told(delays: Sequence[int | None]) -> tuple[str, str, str]:
    known = [math.inf if delay is None else delay for delay in delays]
    num = sum(delay is not None for delay in delays)
    return (
        f"{num} of {len(delays)}",
        f"{statistics.median(known):g}",
        f"{max(known):g}",
    )


def delays(share: float) -> None:
    """From the begin of a leak to the first breach, and to one that is acted on."""
    num = max(2, round(40 * share))

    def rows(make: Any) -> Iterator[Sequence[object]]:
        for leak in (1.0, 0.2, 0.05):
            for kind in KINDS:
                first, certain = [], []
                for seed in range(num):
                    detector = MemoryDriftSequential()
                    first.append(_delay(detector, make(_leaking(kind, seed, leak))))
                    certain.append(_delay(detector, make(_leaking(kind, seed, leak)), "drift"))
                yield leak, kind, *_told(first), *_told(certain)

    columns = ("MiB a step", "trace", "found", "median", "longest")
    columns = (*columns, "to act on", "median", "longest")
    table(f"Delay in steps, {num} runs each, device (every fifth step)", columns, rows(_fifth))
    table(f"Delay in steps, {num} runs each, host (a reading in 3 steps)", columns, rows(_third))


def _fifth(values: Iterable[float]) -> Iterator[Sample]:
    return samples(values, every=5)


def _third(values: Iterable[float]) -> Iterator[Usage]:
    return usages(values, every=3)


def cost(share: float) -> None:
    """Time of one observe()."""

    def rows() -> Iterator[Sequence[object]]:
        num_steps = max(2_000, round(20_000 * share))
        values = list(trace("harsh", 0, num_steps))
        device = [
            Sample(rank=0, step=s, time_s=0.2 * s, allocated_mib=v, reserved_mib=v + 500.0)
            for s, v in enumerate(values)
        ]
        host = [
            Usage(rank=0, step=s, time_s=0.2 * s, host_mib=v, num_fds=90, num_threads=30)
            for s, v in enumerate(values)
        ]
        without = [Sample(rank=0, step=s, time_s=0.2 * s, loss=1.0) for s in range(num_steps)]
        for name, events in (
            ("sample with device memory", device),
            ("sample without", without),
            ("usage with host memory, descriptors, threads", host),
        ):
            for detector in (MemoryDriftSequential(), MemoryDriftLiteral()):
                state, times_us = detector.start(), []
                for event in events:
                    start = time.process_time_ns()
                    state, _ = detector.observe(state, event)
                    times_us.append((time.process_time_ns() - start) / 1e3)
                yield (
                    name,
                    detector.VARIANT,
                    f"{statistics.mean(times_us):.2f}",
                    f"{statistics.median(times_us):.2f}",
                    f"{sorted(times_us)[int(0.999 * len(times_us))]:.0f}",
                )

    columns = ("event", "rule", "mean us", "median us", "99.9 % us")
    table("Cost of one observe()", columns, rows())


def monitor(share: float) -> None:
    """What the monitor spends on reading one rank, by the number of its processes."""

    def rows() -> Iterator[Sequence[object]]:
        for num_children in (0, 8):
            children = [os.fork() for _ in range(num_children) if os.getpid() == _PARENT]
            if 0 in children:
                time.sleep(600)
            try:
                for num_steps in (1, 4):
                    step_ms = 50.0 / num_steps
                    cost = _reading_cost(max(100, round(500 * share)), num_steps)
                    yield (num_children + 1, step_ms, *cost)
            finally:
                for child in children:
                    os.kill(child, 9)
                    os.waitpid(child, 0)

    columns = ("processes of the rank", "ms a step", "readings a second", "us a reading")
    columns = (*columns, "us a second", "us a step")
    table("Cost of reading one rank, at 20 looks a second", columns, rows())


_PARENT = os.getpid()


def _reading_cost(num_looks: int, num_steps: int) -> tuple[str, ...]:
    block = Block.create(rank=0, num_slots=64)
    recorder, tree = Recorder(block), ProcessTree()
    reader = UsageReader(_PARENT, 0, block.words)
    recorder.enter(int(Phase.FORWARD))
    spent_s, num_read, now_s = 0.0, 0, 1_000.0
    for step in range(num_looks):
        for _ in range(num_steps):
            recorder.publish(recorder.end_step(step))
        now_s += 0.05
        start = time.process_time()
        num_read += reader.read(tree, frozenset(), now_s) is not None
        spent_s += time.process_time() - start
    block.close()
    looked_s = num_looks * 0.05
    return (
        f"{num_read / looked_s:.1f}",
        f"{1e6 * spent_s / max(1, num_read):.0f}",
        f"{1e6 * spent_s / looked_s:.0f}",
        f"{1e6 * spent_s / num_looks / num_steps:.0f}",
    )


PARTS = {
    "false": false_alarms,
    "sparse": sparse_false_alarms,
    "delays": delays,
    "literal": literal_false_alarms,
    "cost": cost,
    "monitor": monitor,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="share of the runs to make")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    options = parser.parse_args()
    print(heading("Memory drift: false alarms, delays, cost"))
    for name in options.only.split(","):
        PARTS[name](options.share)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
