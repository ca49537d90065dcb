"""Made-up events of healthy ranks, for benchmarks of detectors."""

from slav1.phase import Phase
from slav1.sample import Pulse, Round, Sample

SIGMA = 0.03
"""Standard deviation of the noise of a loss."""


def round_of(step: int, loss: float) -> Round:
    return Round(step=step, samples=(Sample(rank=0, step=step, time_s=float(step), loss=loss),))


def part(rank: int, step: int, self_s: float, longest_s: float) -> Sample:
    return Sample(
        rank=rank,
        step=step,
        time_s=0.2 * step,
        step_time_s=longest_s + 0.001,
        data_s=0.1 * self_s,
        forward_s=0.3 * self_s,
        backward_s=0.5 * self_s,
        optimizer_s=0.1 * self_s,
        sync_s=longest_s - self_s + 0.001,
    )


def pulse(time_s: float, *, state: str = "S") -> Pulse:
    return Pulse(
        rank=0,
        time_s=float(time_s),
        is_alive=True,
        process_state=state,
        step=int(time_s * 5),
        phase=Phase.FORWARD,
        since_progress_s=0.01,
        num_steps=1_000,
    )
