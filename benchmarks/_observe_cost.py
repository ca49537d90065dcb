"""What one call of each detector costs."""

import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

from _detector_events import SIGMA, part, pulse
from _tables import table

from slav1.detectors import (
    HangLearned,
    HangLiteral,
    LivenessLiteral,
    LivenessSequential,
    LossVarianceLiteral,
    LossVarianceSequential,
    NonFinite,
    StragglerSequential,
    SyncLatencyLearned,
    SyncLatencyLiteral,
    SyncOutlierLiteral,
)
from slav1.sample import Round, Sample


def cost(share: float) -> None:
    """CPU microseconds per observe, best of five."""
    num_events = max(1_000, round(5_000 * share))
    rng = random.Random("cost")

    def full(rank: int, step: int) -> Sample:
        self_s = 0.2 * rng.gauss(1.0, 0.02)
        sample = part(rank, step, self_s, 0.25)
        return Sample(
            **{
                **{name: getattr(sample, name) for name in type(sample).__slots__},
                "loss": rng.gauss(2.0, SIGMA),
                "grad_norm": abs(rng.gauss(0.2, 0.02)),
            }
        )

    samples = [full(0, step) for step in range(num_events)]
    pulses = [pulse(0.1 * t) for t in range(num_events)]

    def rows() -> Iterator[Sequence[object]]:
        per_rank = 0.0
        for detector in (NonFinite(), SyncLatencyLearned(), HangLearned()):
            spent_us = spent(detector, samples)
            per_rank += spent_us
            yield type(detector).__name__, "a sample", f"{spent_us:.1f}", ""
        for detector in (SyncLatencyLiteral(), HangLiteral()):
            yield type(detector).__name__, "a sample", f"{spent(detector, samples):.1f}", ""
        for detector in (HangLearned(), HangLiteral(), LivenessSequential(), LivenessLiteral()):
            yield type(detector).__name__, "a pulse", f"{spent(detector, pulses):.1f}", ""
        for num_ranks in (2, 8):
            joint = [
                Round(step=s, samples=tuple(full(r, s) for r in range(num_ranks)))
                for s in range(num_events // 2)
            ]
            total = per_rank
            for detector in (StragglerSequential(), LossVarianceSequential()):
                spent_us = spent(detector, joint)
                total += spent_us / num_ranks
                yield _of_a_round(detector, num_ranks, spent_us)
            yield "**all defaults**", f"a step, {num_ranks} ranks", "", f"**{total:.1f}**"
            for detector in (LossVarianceLiteral(), SyncOutlierLiteral()):
                spent_us = spent(detector, joint)
                yield _of_a_round(detector, num_ranks, spent_us)

    table(
        "cost in CPU time, best of five",
        ("detector", "event", "us", "us per rank and step"),
        rows(),
    )


def _of_a_round(detector: Any, num_ranks: int, spent_us: float) -> Sequence[object]:
    per_rank = f"{spent_us / num_ranks:.1f}"
    return type(detector).__name__, f"a round of {num_ranks}", f"{spent_us:.1f}", per_rank


def spent(detector: Any, events: Sequence[Any]) -> float:
    best = math.inf
    for _ in range(5):
        state = detector.start()
        began = time.thread_time()
        for event in events:
            state, _ = detector.observe(state, event)
        best = min(best, time.thread_time() - began)
    return best / len(events) * 1e6
