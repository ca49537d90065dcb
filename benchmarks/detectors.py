"""False alarms, delays and cost of the detectors, as Markdown.

    python benchmarks/detectors.py            # everything; about half an hour on one core
    python benchmarks/detectors.py --share 0.1 --only loss,cost

Every series is made up from fixed seeds, with known truth. Counts come with the one-sided
95 % bound on the rate behind them.
"""

import argparse
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from _detector_events import SIGMA, part, pulse, round_of
from _machine import heading
from _observe_cost import cost
from _tables import table, upper_bound

from slav1.breach import Breach, Status
from slav1.detectors import (
    LivenessSequential,
    LossVarianceLiteral,
    LossVarianceSequential,
    StragglerSequential,
)
from slav1.detectors._loss_tests import LossTests, observe_loss
from slav1.detectors._tail import Durations, learn, tail_limit_s
from slav1.sample import Pulse, Round

NOISES = ("gaussian", "ar 0.5", "t4", "1 % at 5 sigma", "1 % at 10 sigma")


def noise(kind: str, rng: random.Random) -> Iterator[float]:
    """Endless noise with standard deviation 1 (contamination comes on top)."""
    last = 0.0
    while True:
        value = rng.gauss(0.0, 1.0)
        if kind == "ar 0.5":
            value = 0.5 * last + math.sqrt(0.75) * value
        elif kind == "t4":
            value /= math.sqrt(rng.gammavariate(2.0, 2.0) / 4.0) * math.sqrt(2.0)
        elif kind.startswith("1 %") and rng.random() < 0.01:
            value *= 10.0 if "10" in kind else 5.0
        last = value
        yield value


def trend(step: int) -> float:
    return 2.0 + 6.0 / math.sqrt(1.0 + step / 200.0)


def watched(detector: Any, events: Iterable[Any]) -> list[Breach]:
    state, found = detector.start(), []
    for event in events:
        state, breach = detector.observe(state, event)
        if breach is not None:
            found.append(breach)
    return found


def loss_false_alarms(share: float) -> None:
    """Healthy losses: notices and breaches per 100,000 steps."""
    num_runs, num_steps = max(1, round(20 * share)), 20_000

    def rows() -> Iterator[Sequence[object]]:
        for kind in NOISES:
            kinds: dict[str, int] = {}
            for start in (0, 5_000):
                for seed in range(num_runs):
                    values = noise(kind, random.Random(f"{kind} {start} {seed}"))
                    steps = range(start, start + num_steps)
                    # Every certain rise a breach: the share of the loss must not hide any.
                    detector = LossVarianceSequential(min_rise_ratio=0.0)
                    series = (round_of(s, trend(s) + SIGMA * next(values)) for s in steps)
                    for breach in watched(detector, series):
                        if breach.status is not Status.RECOVERED:
                            name = str(breach.evidence["kind"])
                            kinds[name] = kinds.get(name, 0) + 1
            exposure = 2 * num_runs * num_steps / 1e5
            persistent = sum(kinds.get(k, 0) for k in ("shift", "variance", "outliers", "jump"))
            yield (
                kind,
                f"{kinds.get('outlier', 0) / exposure:.1f}",
                f"{kinds.get('shift', 0) / exposure:.2f}",
                f"{kinds.get('variance', 0) / exposure:.2f}",
                f"{kinds.get('outliers', 0) / exposure:.2f}",
                f"{persistent / exposure:.2f} (< {upper_bound(persistent, exposure):.2f})",
            )

    table(
        f"loss_variance (sequential): findings per 100,000 healthy steps, "
        f"{2 * num_runs} runs of {num_steps:,}, min_rise_ratio=0",
        ("noise", "outlier notices", "shift", "variance", "two outliers", "persistent (95 %)"),
        rows(),
    )


def loss_delays(share: float) -> None:
    """Steps from the injection to the first finding, on t4 noise."""
    injected: dict[str, Callable[[int, float], float]] = {
        "5 sigma spike, decay 20": lambda k, e: e + 5 * math.exp(-k / 20),
        "10 sigma spike": lambda k, e: e + 10 * math.exp(-k / 20),
        "50 sigma spike": lambda k, e: e + 50 * math.exp(-k / 20),
        "level +2 sigma": lambda k, e: e + 2,
        "level +4 sigma": lambda k, e: e + 4,
        "ramp 0.1 sigma a step": lambda k, e: e + 0.1 * k,
        "ramp 0.5 sigma a step": lambda k, e: e + 0.5 * k,
        "noise sd x 2.2": lambda k, e: 2.2 * e if k < 200 else e,
        "noise sd x 4.1": lambda k, e: 4.1 * e if k < 200 else e,
        "noise sd x 8.1": lambda k, e: 8.1 * e if k < 200 else e,
    }
    detectors = {
        "sequential": LossVarianceSequential(min_rise_ratio=0.0),
        "literal": LossVarianceLiteral(),
    }
    num_runs, onset = max(5, round(100 * share)), 2_000

    def rows() -> Iterator[Sequence[object]]:
        for name, change in injected.items():
            cells: list[object] = [name]
            for detector in detectors.values():
                delays = []
                for seed in range(num_runs):
                    # Not a multiple of a block, so that no block starts with the change.
                    first = onset + seed % 8
                    values = noise("t4", random.Random(f"delay {seed}"))
                    series = []
                    for i in range(first + 300):
                        e = next(values)
                        e = e if i < first else change(i - first, e)
                        series.append(round_of(i, trend(6_000 + i) + SIGMA * e))
                    hits = [
                        b.step - first
                        for b in watched(detector, series)
                        if b.status is Status.BREACH and (b.step or 0) >= first
                    ]
                    delays.append(min(hits) if hits else None)
                cells += [*found_cells(delays)]
            yield cells

    columns = ["injected"]
    for name in detectors:
        columns += [f"{name}: found", "median steps", "p95"]
    table(f"loss_variance: delay of the breach, {num_runs} runs each, t4 noise", columns, rows())


def found_cells(delays: Sequence[int | None]) -> tuple[str, str, str]:
    known = sorted(delay for delay in delays if delay is not None)
    share = f"{100 * len(known) / len(delays):.0f} %"
    if not known:
        return share, "-", "-"
    p95 = known[min(len(known) - 1, math.ceil(0.95 * len(known)) - 1)]
    return share, f"{statistics.median(known):g}", str(p95)


def arl0(share: float) -> None:
    """Mean healthy samples between alarms, at a reduced setting, over the claim."""
    claim, num_steps = 2_000.0, max(20_000, round(400_000 * share))

    def rows() -> Iterator[Sequence[object]]:
        for kind in NOISES:
            values = noise(kind, random.Random(f"arl0 {kind}"))
            memory, num_shift, num_loud = LossTests(), 0, 0
            for _ in range(num_steps):
                loss = 2.0 + SIGMA * next(values)
                memory, reading = observe_loss(memory, loss, outlier_sigmas=8.0, arl0=claim)
                num_shift += reading is not None and reading.shift >= reading.shift_limit
                num_loud += reading is not None and reading.is_loud
            yield f"loss shift, {kind}", f"{num_steps / max(1, num_shift) / claim:.2f}"
            yield f"loss variance, {kind}", f"{num_steps / max(1, num_loud) / claim:.2f}"

    table(f"ARL0 over the claim of {claim:,.0f}; needed: 0.8", ("statistic", "ratio"), rows())


def rounds(
    num_ranks: int,
    num_rounds: int,
    *,
    seed: object,
    slowdown: float = 1.0,
    start: int = 0,
    imbalance: float = 0.05,
    load: float = 0.0,
) -> Iterator[Round]:
    """Rounds of 200 ms with 5 % noise and pauses; from ``start`` on rank 0 is slower."""
    rng = random.Random(f"rounds {seed}")
    own = [1.0 + imbalance * rng.uniform(-1.0, 1.0) for _ in range(num_ranks)]
    for step in range(num_rounds):
        times = [0.2 * each * max(0.1, rng.gauss(1.0, 0.05)) for each in own]
        times = [t * max(0.1, rng.gauss(1.0, load)) for t in times] if load else times
        if step >= start:
            times[0] *= slowdown
        times = [t + (1.0 if rng.random() < 0.002 else 0.0) for t in times]
        yield Round(
            step=step, samples=tuple(part(i, step, t, max(times)) for i, t in enumerate(times))
        )


def straggler_delays(share: float) -> None:
    num_runs, onset = max(3, round(20 * share)), 400

    def rows() -> Iterator[Sequence[object]]:
        for num_ranks in (2, 4, 8, 64):
            cells: list[object] = [num_ranks]
            num_right = num_found = 0
            for slowdown in (1.15, 1.25, 1.5, 2.0):
                delays: list[int | None] = []
                for seed in range(num_runs):
                    series = rounds(
                        num_ranks,
                        onset + 300,
                        seed=(num_ranks, slowdown, seed),
                        slowdown=slowdown,
                        start=onset,
                    )
                    found = watched(StragglerSequential(), series)
                    first = next((b for b in found if b.status is Status.BREACH), None)
                    delays.append(None if first is None else (first.step or 0) - onset + 1)
                    num_found += first is not None
                    num_right += first is not None and first.rank == 0
                _, middle, p95 = found_cells(delays)
                cells.append(f"{middle} ({p95})")
            yield [*cells, f"{num_right} of {num_found}, {4 * num_runs} runs"]

    table(
        f"straggler: rounds until found, median (p95), {num_runs} runs each",
        ("ranks", "1.15x", "1.25x", "1.5x", "2x", "right rank"),
        rows(),
    )


def straggler_false_alarms(share: float) -> None:
    num_runs, num_rounds = max(1, round(10 * share)), 20_000
    cases = {
        "identical ranks": (0.0, 0.0),
        "5 % permanent imbalance": (0.05, 0.0),
        "30 % permanent imbalance": (0.3, 0.0),
        "20 % random load": (0.0, 0.2),
    }

    def rows() -> Iterator[Sequence[object]]:
        for name, (imbalance, load) in cases.items():
            for num_ranks in (2, 4):
                found = 0
                for seed in range(num_runs):
                    series = rounds(
                        num_ranks,
                        num_rounds,
                        seed=(name, num_ranks, seed),
                        imbalance=imbalance,
                        load=load,
                    )
                    told = watched(StragglerSequential(), series)
                    found += sum(b.status is Status.BREACH for b in told)
                yield name, num_ranks, f"{num_runs * num_rounds:,}", found

    table("straggler: false alarms", ("self times", "ranks", "healthy rounds", "alarms"), rows())


def hang_limits(share: float) -> None:
    """Learned limits on healthy durations with exponential pauses."""
    num_runs = max(2, round(10 * share))

    def rows() -> Iterator[Sequence[object]]:
        for step_s in (0.02, 0.2):
            for pause_s in (0.0, 0.2, 0.5):
                for num_steps in (1_000, 10_000, 100_000):
                    limits, rates = [], []
                    for seed in range(num_runs if num_steps < 100_000 else max(1, num_runs // 3)):
                        rng = random.Random(f"hang {step_s} {pause_s} {seed}")
                        durations = Durations()
                        for _ in range(num_steps):
                            value = step_s * math.exp(rng.gauss(0.0, 0.1))
                            if pause_s and rng.random() < 1e-3:
                                value += rng.expovariate(1.0 / pause_s)
                            durations = learn(durations, value)
                        limit_s = max(
                            1.0,
                            tail_limit_s(
                                durations, num_per_day=86_400 / step_s, false_alarms_per_day=0.1
                            ),
                        )
                        limits.append(limit_s)
                        over = math.exp(-(limit_s - step_s) / pause_s) if pause_s else 0.0
                        rates.append(86_400 / step_s * 1e-3 * over)
                    yield (
                        f"{1000 * step_s:.0f} ms",
                        f"{1000 * pause_s:.0f} ms",
                        f"{num_steps:,}",
                        f"{statistics.median(limits):.2f} ({min(limits):.2f} to {max(limits):.2f})",
                        f"{statistics.median(rates):.2f} ({max(rates):.2f})",
                    )

    table(
        "hang (learned): limit after n steps, 1 pause in 1,000 steps, wanted 0.1 a day",
        ("step", "mean pause", "steps learned", "limit s", "alarms a day: median (worst run)"),
        rows(),
    )


def missed_beats(share: float) -> None:
    num_runs = max(5, round(50 * share))

    def rows() -> Iterator[Sequence[object]]:
        for chance in (1.0, 0.05, 0.01, 0.005):
            delays: list[int | None] = []
            for seed in range(num_runs):
                rng = random.Random(f"beats {chance} {seed}")
                pulses = (
                    pulse(t, state="?" if rng.random() < chance else "S") for t in range(20_000)
                )
                delays.append(first_beat(pulses))
            _, middle, p95 = found_cells(delays)
            yield f"{chance:.1%}", middle, p95

    table(
        f"liveness (sequential): beats until found, one a second, {num_runs} runs",
        ("missed", "median", "p95"),
        rows(),
    )


def first_beat(pulses: Iterable[Pulse]) -> int | None:
    detector = LivenessSequential()
    state = detector.start()
    for number, event in enumerate(pulses):
        state, breach = detector.observe(state, event)
        if breach is not None:
            return number
    return None


PARTS: dict[str, tuple[Callable[[float], None], ...]] = {
    "loss": (loss_false_alarms, loss_delays),
    "arl0": (arl0,),
    "straggler": (straggler_delays, straggler_false_alarms),
    "hang": (hang_limits,),
    "liveness": (missed_beats,),
    "cost": (cost,),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the runs, for a quick look")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    options = parser.parse_args()
    print(heading("Detectors: false alarms, delays, cost"))
    for name in options.only.split(","):
        for each in PARTS[name]:
            each(options.share)


if __name__ == "__main__":
    main()
