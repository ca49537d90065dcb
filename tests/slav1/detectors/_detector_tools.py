"""Made-up runs with known truth, and how to show them to a detector."""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from slav1.breach import Breach, Status
from slav1.phase import Phase
from slav1.sample import Pulse, Round, Sample, Usage

CURVES = Path(__file__).parents[2] / "data" / "loss_curves"
NOISES = ("gaussian", "ar", "t4", "contaminated")


def watch(detector: Any, events: Iterable[Any]) -> list[Breach]:
    """Everything a detector finds in a run of its own."""
    return watch_from(detector, detector.start(), events)[1]


def watch_from(detector: Any, state: Any, events: Iterable[Any]) -> tuple[Any, list[Breach]]:
    """Memory and findings after some more events."""
    found = []
    for event in events:
        state, breach = detector.observe(state, event)
        if breach is not None:
            found.append(breach)
    return state, found


def brief(found: Iterable[Breach]) -> list[tuple[int | None, str]]:
    """Step and status of each finding, for comparing."""
    return [(breach.step, breach.status.value) for breach in found]


def breaches(found: Iterable[Breach]) -> list[Breach]:
    """Those findings that open or strengthen an incident."""
    return [breach for breach in found if breach.status is Status.BREACH]


def round_of(step: int, *losses: float | None, **others: Any) -> Round:
    """A round in which rank 0, 1, ... had these losses."""
    samples = [
        Sample(rank=rank, step=step, time_s=0.2 * step, loss=loss, **others)
        for rank, loss in enumerate(losses)
    ]
    return Round(step=step, samples=tuple(samples))


def losses(values: Iterable[float], *, first: int = 0) -> Iterator[Round]:
    """A run of one rank with these losses."""
    return (round_of(first + i, value) for i, value in enumerate(values))


def noise(kind: str, seed: int) -> Iterator[float]:
    """Endless noise of about unit standard deviation."""
    rng = random.Random(f"{kind} {seed}")
    last = 0.0
    while True:
        value = rng.gauss(0.0, 1.0)
        if kind == "ar":
            value = 0.5 * last + math.sqrt(0.75) * value
        elif kind == "t4":
            value /= math.sqrt(rng.gammavariate(2.0, 2.0) / 4.0) * math.sqrt(2.0)
        elif kind == "contaminated" and rng.random() < 0.01:
            value *= 10.0
        last = value
        yield value


def self_times(
    num_ranks: int,
    num_rounds: int,
    *,
    seed: int,
    slow_rank: int = 0,
    slowdown: float = 1.0,
    start: int = 0,
    end: int = 10**9,
    part: str = "backward_s",
    imbalance: float = 0.05,
) -> Iterator[Round]:
    """Rounds of 200 ms with 5 % noise and pauses; one rank is slower for a while."""
    rng = random.Random(f"{num_ranks} {slowdown} {seed}")
    own = [1.0 + imbalance * rng.uniform(-1.0, 1.0) for _ in range(num_ranks)]
    for step in range(num_rounds):
        selfs = [0.2 * each * max(0.1, rng.gauss(1.0, 0.05)) for each in own]
        selfs = [each + (1.0 if rng.random() < 0.002 else 0.0) for each in selfs]
        parts = [
            {"data_s": 0.1 * s, "forward_s": 0.3 * s, "backward_s": 0.5 * s, "optimizer_s": 0.1 * s}
            for s in selfs
        ]
        if start <= step < end:
            parts[slow_rank][part] += (slowdown - 1.0) * selfs[slow_rank]
        longest_s = max(sum(each.values()) for each in parts)
        samples = [
            Sample(
                rank=rank,
                step=step,
                time_s=0.3 * step,
                sync_s=longest_s - sum(each.values()) + 0.001,
                **each,
            )
            for rank, each in enumerate(parts)
        ]
        yield Round(step=step, samples=tuple(samples))


def pulse(time_s: float, **changes: Any) -> Pulse:
    """A pulse of a healthy rank in the middle of a run, with changes."""
    usual: dict[str, Any] = {
        "rank": 1,
        "time_s": time_s,
        "is_alive": True,
        "process_state": "S",
        "step": 1_000,
        "phase": Phase.FORWARD,
        "since_progress_s": 0.01,
        "num_steps": 1_000,
    }
    return Pulse(**(usual | changes))


def stall(start_s: float, length_s: float, *, tick_s: float = 0.1, **changes: Any) -> list[Pulse]:
    """Pulses of a rank that makes no progress for a while."""
    num_ticks = round(length_s / tick_s)
    return [
        pulse(start_s + i * tick_s, since_progress_s=i * tick_s, **changes)
        for i in range(1, num_ticks + 1)
    ]


def progress(
    start_s: float, length_s: float, *, tick_s: float = 0.1, **changes: Any
) -> list[Pulse]:
    """Pulses of a rank that is well."""
    return [pulse(start_s + i * tick_s, **changes) for i in range(1, round(length_s / tick_s) + 1)]


def on_host(
    memory: Callable[[int], float], num_steps: int, *, first: int = 0, every: int = 3, **known: Any
) -> Iterator[Usage]:
    """Usages of a rank whose host memory is a function of the step, read with noise."""
    rng = random.Random(num_steps)
    known = {"ceiling_mib": 16_000.0, "free_mib": 12_000.0} | known
    for step in range(first, first + num_steps):
        if step % every == rng.randrange(every):
            counts = {name: of(step) for name, of in known.items() if callable(of)}
            fixed = {name: value for name, value in known.items() if not callable(value)}
            value = memory(step) + abs(rng.gauss(0.0, 0.5))
            yield Usage(rank=1, step=step, time_s=0.01 * step, host_mib=value, **fixed, **counts)
