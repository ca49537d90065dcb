"""What the monitor's side spends on all rules of a contract, per rank and step, as Markdown.

    python benchmarks/detector_cost.py                 # every rule that level L1 has on
    python benchmarks/detector_cost.py --ranks 2,8 --level L3 --profile

The rules are those of the contract, whatever they are: a new one is in the table without a
change here, as long as it watches a kind of event that this script can make. Events are made
up from fixed seeds: healthy steps with noise, and as many readings of clocks as a step of the
given length sees. Each rule runs alone for its own row, and all of them together, through the
same ``Guard`` as in a job, for the last one. CPU time: the same events are shown several times, and
of each ten steps the shortest time counts, so that what else the machine does adds little.
"""

import argparse
import cProfile
import gc
import math
import pstats
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from _machine import heading

from slav1.contract import Contract, Mode
from slav1.detectors._detector import Detector, Event
from slav1.guard import Guard
from slav1.phase import Phase
from slav1.sample import Audit, Pulse, Replicas, Round, Sample, Save, Usage

LIMIT_US = 100.0
WARM_STEPS = 300
CHUNK_STEPS = 10
# How often a monitor reads the clocks of a rank whose phase lasts, at most.
PULSE_EVERY_S = 0.25
USAGE_EVERY_S = 10.0
SAVE_EVERY_STEPS = 100
# Device memory is recorded in every fourth step.
MEMORY_EVERY_STEPS = 4
REPLICA_SLOTS = 50


def sample(rank: int, step: int, step_s: float, rng: random.Random) -> Sample:
    """A healthy step with everything measured."""
    longest_s = 0.9 * step_s
    self_s = min(longest_s, 0.8 * step_s * rng.gauss(1.0, 0.02))
    has_memory = step % MEMORY_EVERY_STEPS == 0
    return Sample(
        rank=rank,
        step=step,
        time_s=step * step_s,
        loss=2.0 + 6.0 / math.sqrt(1.0 + step / 200.0) + rng.gauss(0.0, 0.03),
        grad_norm=abs(rng.gauss(0.2, 0.02)),
        step_time_s=step_s,
        data_s=0.01 * self_s,
        forward_s=0.35 * self_s,
        backward_s=0.6 * self_s,
        sync_s=longest_s - self_s,
        optimizer_s=0.04 * self_s,
        allocated_mib=10_000.0 + rng.gauss(0.0, 20.0) if has_memory else None,
        reserved_mib=12_000.0 + rng.gauss(0.0, 20.0) if has_memory else None,
        zero_share=abs(rng.gauss(0.1, 0.01)),
        batch=step,
        is_warmup=step < 3,
    )


def pulse(rank: int, step: int, time_s: float) -> Pulse:
    return Pulse(
        rank=rank,
        time_s=time_s,
        is_alive=True,
        process_state="S",
        step=step,
        phase=Phase.BACKWARD,
        since_progress_s=0.1,
        num_steps=step,
    )


def usage(rank: int, step: int, time_s: float, rng: random.Random) -> Usage:
    return Usage(
        rank=rank,
        step=step,
        time_s=time_s,
        host_mib=4_000.0 + rng.gauss(0.0, 5.0),
        num_fds=80,
        num_threads=20,
        ceiling_mib=64_000.0,
        free_mib=32_000.0,
        fd_limit=1024,
        device_mib=80_000.0,
        num_saves=step // SAVE_EVERY_STEPS,
    )


def replicas(step: int, num_ranks: int) -> Replicas:
    return Replicas(
        step=step,
        part="all",
        slots=(step % REPLICA_SLOTS,),
        ranks=tuple(range(num_ranks)),
        num_tensors=10,
        num_differing=0,
        differing=(),
        is_first=step < REPLICA_SLOTS,
        is_certain=True,
    )


def events(num_ranks: int, num_steps: int, step_s: float) -> Iterator[list[Event]]:
    """What the rules are shown, step by step."""
    rng = random.Random(f"{num_ranks} {step_s}")
    pulses_due, usages_due = 0.0, 0.0
    yield [Audit(step=0, time_s=0.0, moment="start")]
    for step in range(num_steps):
        samples = tuple(sample(rank, step, step_s, rng) for rank in range(num_ranks))
        told: list[Event] = [*samples, Round(step=step, samples=samples)]
        pulses_due += step_s / PULSE_EVERY_S
        usages_due += step_s / USAGE_EVERY_S
        for number in range(int(pulses_due)):
            at_s = step * step_s + number * PULSE_EVERY_S
            told += [pulse(rank, step, at_s) for rank in range(num_ranks)]
        if usages_due >= 1.0:
            told += [usage(rank, step, step * step_s, rng) for rank in range(num_ranks)]
        pulses_due, usages_due = pulses_due % 1.0, usages_due % 1.0
        told.append(replicas(step, num_ranks))
        if step % SAVE_EVERY_STEPS == SAVE_EVERY_STEPS - 1:
            told.append(Save(step=step, time_s=step * step_s, succeeded=True))
        yield told


MADE = (Audit, Pulse, Replicas, Round, Sample, Save, Usage)


def rules_on(level: str) -> dict[str, Detector]:
    rules = Contract.level(level).rules.items()
    on = {name: rule.detector for name, rule in rules if rule.mode is not Mode.OFF}
    for name, detector in on.items():
        unknown = [kind.__name__ for kind in detector.WATCHES if kind not in MADE]
        if unknown:
            sys.exit(f"{name} watches {', '.join(unknown)}: teach `events` to make that.")
    return on


def spent_us(
    detectors: Mapping[str, Detector], steps: Sequence[Sequence[Event]], num_ranks: int, num: int
) -> tuple[float, Counter[str]]:
    """CPU time per rank and step after the warm-up, and what was found on the way."""
    warm = [event for step in steps[:WARM_STEPS] for event in step]
    timed = steps[WARM_STEPS:]
    chunks = [
        [event for step in timed[first : first + CHUNK_STEPS] for event in step]
        for first in range(0, len(timed), CHUNK_STEPS)
    ]
    best = [math.inf] * len(chunks)
    found: Counter[str] = Counter()
    for _ in range(num):
        guard = Guard(detectors)
        breaches = [breach for event in warm for breach in guard.observe(event)]
        for place, chunk in enumerate(chunks):
            began = time.thread_time()
            for event in chunk:
                breaches += guard.observe(event)
            best[place] = min(best[place], time.thread_time() - began)
        found = Counter(f"{each.rule} {each.status.name.lower()}" for each in breaches)
    return sum(best) * 1e6 / len(timed) / num_ranks, found


def measure(options: argparse.Namespace, num_ranks: int, step_s: float) -> float:
    on = rules_on(options.level)
    num_steps = WARM_STEPS + max(100, options.samples // num_ranks)
    steps = list(events(num_ranks, num_steps, step_s))
    num_kinds = Counter(type(event) for step in steps[WARM_STEPS:] for event in step)
    # A monitor holds no such list: the collector must not look through ours again and again.
    gc.collect()
    gc.freeze()
    per_step = (num_steps - WARM_STEPS) * num_ranks
    print(f"\n### {num_ranks} ranks, steps of {1000 * step_s:.0f} ms\n")
    print("| rule | detector | events | per rank and step | us per rank and step |")
    print("| --- | --- | --- | --- | --- |")
    for name, detector in on.items():
        kinds = [kind for kind in detector.WATCHES if num_kinds[kind]]
        often = ", ".join(f"{num_kinds[kind] / per_step:.3g}" for kind in kinds) or "at the start"
        watched = [[event for event in step if type(event) in kinds] for step in steps]
        cost_us, _ = spent_us({name: detector}, watched, num_ranks, options.best_of)
        shown = ", ".join(kind.__name__ for kind in detector.WATCHES)
        print(f"| {name} | {type(detector).__name__} | {shown} | {often} | {cost_us:.1f} |")
    total_us, found = spent_us(on, steps, num_ranks, options.best_of)
    print(f"| **all {len(on)} together** | | | | **{total_us:.1f}** |", flush=True)
    told = ", ".join(f"{what} {num}" for what, num in sorted(found.items())) or "nothing"
    print(f"\nFound in {num_steps:,} healthy steps: {told}.")
    if options.profile:
        profiler = cProfile.Profile()
        profiler.runcall(spent_us, on, steps, num_ranks, 1)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    gc.unfreeze()
    return total_us


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--level", default="L1")
    parser.add_argument("--ranks", default="2,8,64")
    parser.add_argument("--step-ms", default="20,1000")
    parser.add_argument("--samples", type=int, default=4_000, help="timed, all ranks together")
    parser.add_argument("--best-of", type=int, default=7)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    print(heading("All detectors together: the monitor's time per rank and step"))
    worst_us = max(
        measure(options, int(num_ranks), float(step_ms) / 1000.0)
        for num_ranks in options.ranks.split(",")
        for step_ms in options.step_ms.split(",")
    )
    verdict = "kept" if worst_us <= LIMIT_US else "missed"
    print(f"\nWorst: {worst_us:.1f} us per rank and step; {LIMIT_US:.0f} are allowed: {verdict}.")


if __name__ == "__main__":
    main()
