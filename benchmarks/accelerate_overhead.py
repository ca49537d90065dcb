"""What the contract costs a hand-written loop: the same loop with and without it in turn.

Both loops run in the same process, one epoch after the other, so that what the machine
does meanwhile hits both. Prints a Markdown page.
"""

import argparse
import json
import os
import time
from itertools import pairwise
from statistics import mean, median

import torch
from _machine import heading
from _pairs import print_pairs
from _runs import scratch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sla_accelerate import SLAAccelerator
from sla_accelerate.telemetry import LoopWatch

WARMUP_STEPS = 10


def job(options: argparse.Namespace) -> None:
    """One paired measurement, in every rank; rank 0 prints what it saw as JSON."""
    loops = {
        "without": prepared(Accelerator(cpu=True), options),
        "with": prepared(SLAAccelerator(cpu=True, run_dir=options.run_dir), options),
    }
    times_s = {"without": [], "with": []}
    for number in range(2 * options.pairs):
        name = ("without", "with", "with", "without")[number % 4]
        times_s[name].append(median(epoch_s(*loops[name], options.step_ms / 1000)))
    loops["with"][0].end_training()
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(times_s))


def prepared(accelerator: Accelerator, options: argparse.Namespace) -> tuple[object, ...]:
    """The accelerator with a small model, its optimizer and a loader for one epoch."""
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    items = TensorDataset(torch.randn(options.steps * options.ranks, 64))
    return accelerator, *accelerator.prepare(model, optimizer, DataLoader(items, batch_size=1))


def epoch_s(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
    pause_s: float,
) -> list[float]:
    """Trains an epoch; how long each step took. A pause stands for the device's work."""
    ends_s = []
    for (batch,) in loader:
        if pause_s:
            time.sleep(pause_s)
        accelerator.backward(model(batch).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
        ends_s.append(time.perf_counter())
    return [after - before for before, after in pairwise(ends_s)][WARMUP_STEPS:]


HOOKS = (
    *("begin_fetch", "end_fetch", "begin_backward", "end_backward"),
    *("before_optimizer_step", "after_optimizer_step"),
)


def inside_us(num_steps: int = 3000) -> tuple[float, float, float]:
    """Microseconds a step takes in what is added, in a real loop on one rank.

    Returns:
        Median and mean of all hooks of a step, gradients included; and by how much the median
        ``next`` of a watched loader, hooks left out, is longer than that of a plain one.
    """
    spent_s: list[float] = [0.0]
    for name in HOOKS:
        _timed(name, spent_s)
    options = argparse.Namespace(steps=num_steps, ranks=1)
    with scratch() as folder:
        plain = prepared(Accelerator(cpu=True), options)
        watched = prepared(SLAAccelerator(cpu=True, run_dir=str(folder)), options)
        hooks_s: list[float] = []
        fetch_s: dict[str, list[float]] = {"plain": [], "watched": []}
        for _ in range(3):
            for name, (accelerator, model, optimizer, loader) in (
                ("plain", plain),
                ("watched", watched),
            ):
                batches = iter(loader)
                while True:
                    before_s, start_s = spent_s[0], time.perf_counter()
                    try:
                        (batch,) = next(batches)
                    except StopIteration:
                        break
                    hooked_s = spent_s[0] - before_s
                    fetch_s[name].append(time.perf_counter() - start_s - hooked_s)
                    accelerator.backward(model(batch).pow(2).mean())
                    optimizer.step()
                    optimizer.zero_grad()
                    if name == "watched":
                        hooks_s.append(spent_s[0] - before_s)
        watched[0].end_training()
    loader_s = median(fetch_s["watched"]) - median(fetch_s["plain"])
    return median(hooks_s) * 1e6, mean(hooks_s) * 1e6, loader_s * 1e6


def _timed(name: str, spent_s: list[float]) -> None:
    """Adds the time of a hook to the sum."""
    hook = getattr(LoopWatch, name)

    def timed(*args: object, **more: object) -> object:
        start_s = time.perf_counter()
        try:
            return hook(*args, **more)
        finally:
            spent_s[0] += time.perf_counter() - start_s

    setattr(LoopWatch, name, timed)


def main() -> None:
    """Prints the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--run-dir", default="sla_runs")
    parser.add_argument("--only-inside", action="store_true")
    options = parser.parse_args()
    if options.job:
        job(options)
        return
    print(heading("What the contract costs a hand-written loop"))
    middle, average, loader = inside_us()
    print(
        f"Inside the hooks, gradients of 16 tensors included, 1 rank: median {middle:.1f} us, mean "
        f"{average:.1f} us a step. The watched loader itself: {loader:.1f} us a batch more.\n"
    )
    if options.only_inside:
        return
    cases = ((1, 0, 300, 60), (2, 0, 200, 40), (1, 50, 40, 16), (2, 50, 40, 16))
    print_pairs(__file__, cases)


if __name__ == "__main__":
    main()
