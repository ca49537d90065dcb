"""What the contract costs a ``transformers.Trainer``: one training with and without it in turn.

Both trainings run in the same process, one after the other, so that what the machine does
meanwhile hits both. Prints a Markdown page.
"""

import argparse
import json
import os
import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from _machine import heading
from _pairs import print_pairs
from _runs import scratch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from sla_accelerate import SLATrainerCallback, _runs
from slav1.contract import Contract

WARMUP_STEPS = 10
SPIN_US = 200
"""About what a watched step takes more of the main thread's time."""


class Model(nn.Module):
    """Small layers that return their loss as the host wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
        self.pause_s = 0.0

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """A pause stands for the device's work."""
        if self.pause_s:
            time.sleep(self.pause_s)
        return {"loss": self.layers(inputs).pow(2).mean()}


class Clock(TrainerCallback):
    """When each step ended; the last callback but for the contract's own."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.ends_s.clear()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.ends_s.append(time.perf_counter())

    def steps_s(self) -> list[float]:
        """How long each step took, the first ones left out."""
        return [after - before for before, after in pairwise(self.ends_s)][WARMUP_STEPS:]


class Spins(TrainerCallback):
    """Takes a processor for a while at the end of each step, and does nothing else."""

    def __init__(self, spin_us: int) -> None:
        self.spin_ns = spin_us * 1000

    def on_step_end(self, *_: Any, **__: Any) -> None:
        end_ns = time.thread_time_ns() + self.spin_ns
        while time.thread_time_ns() < end_ns:
            pass


def trainer(folder: str, steps: int, step_ms: float, *callbacks: TrainerCallback) -> Trainer:
    """A trainer that neither logs nor saves."""
    model = Model()
    model.pause_s = step_ms / 1000
    arguments = TrainingArguments(
        output_dir=f"{folder}/out",
        per_device_train_batch_size=1,
        max_steps=steps,
        learning_rate=1e-4,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    items = TensorDataset(torch.randn(4096, 64))

    def collate(rows: list[tuple[Tensor]]) -> dict[str, Tensor]:
        return {"inputs": torch.stack([row[0] for row in rows])}

    return Trainer(model, arguments, collate, items, callbacks=[*callbacks])


def job(options: argparse.Namespace) -> None:
    """One paired measurement, in every rank; rank 0 prints what it saw as JSON."""
    clocks = {"without": Clock(), "with": Clock()}
    more = Spins(options.spin_us) if options.spin_us else SLATrainerCallback(None, options.run_dir)
    how = (options.run_dir, options.steps, options.step_ms)
    trainers = {
        "without": trainer(*how, clocks["without"]),
        "with": trainer(*how, clocks["with"], more),
    }
    times_s: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(2 * options.pairs):
        name = ("without", "with", "with", "without")[number % 4]
        trainers[name].train()
        times_s[name].append(median(clocks[name].steps_s()))
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(times_s))


def inside_us() -> float:
    """Microseconds a step takes in what is added to the loop, best of 40 x 500 steps."""
    found: list[float] = []

    class Measures(TrainerCallback):
        """Makes the calls of a step again and again, at the end of the first one."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch, loss, batch = _runs.current(), torch.tensor(1.0), torch.ones(1)
            optimizer = kwargs["optimizer"].optimizer
            if state.global_step != 1:
                return
            for _ in range(40):
                start = time.perf_counter()
                for _ in range(500):
                    watch.begin_fetch(())
                    watch.end_fetch(batch)
                    watch.begin_backward(loss)
                    watch.end_backward(has_gradients=True)
                    watch.after_optimizer_step(optimizer)
                    sla.on_step_end(args, state, control)
                found.append((time.perf_counter() - start) / 500 * 1e6)

    with scratch() as folder:
        contract = Contract.level("L1").override(monitor={"kind": "off"})
        sla = SLATrainerCallback(contract, str(folder))
        trainer(str(folder), 2, 0, Measures(), sla).train()
    return min(found)


def main() -> None:
    """Prints the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--run-dir", default="sla_runs")
    parser.add_argument("--spin-us", type=int, default=0, help="spins instead of the contract")
    options = parser.parse_args()
    if options.job:
        job(options)
        return
    print(heading("What the contract costs a transformers Trainer"))
    print(f"Inside what is added, best of 40 x 500 steps: {inside_us():.1f} us a step.\n")
    cases = ((1, 0, 300, 20), (2, 0, 200, 12), (1, 50, 40, 8), (2, 50, 40, 8))
    print_pairs(__file__, cases)
    print(f"\nWithout the contract, with a callback that spins for {SPIN_US} us a step:\n")
    print_pairs(__file__, cases[1:2], f"--spin-us={SPIN_US}")


if __name__ == "__main__":
    main()
