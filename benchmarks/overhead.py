"""What the contract costs the trainer: recorder, callback, and a whole 50 ms step.

The job runs the same fit with and without ``SLACallback`` in turn, in the same
processes, so that what the machine does meanwhile hits both. Prints a Markdown page.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from statistics import mean, median

import lightning as L
import torch
from _machine import heading, quantile
from _runs import scratch
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch.utils.data import DataLoader, Dataset

from sla_lightning import SLACallback
from slav1.phase import Phase
from slav1.recorder import Block, Recorder, layout

HOOKS = (
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)


class Batches(Dataset):
    """The same batch again and again."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._batch = torch.randn(16, 64)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._batch


class Busy(L.LightningModule):
    """A small model; a pause in its forward stands for the device's work.

    Computing instead of pausing would measure how evenly two busy cores are shared, which
    on a virtual machine differs by more than what is looked for.
    """

    def __init__(self, step_ms: float) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
        self._pause_s = step_ms / 1000

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if self._pause_s:
            time.sleep(self._pause_s)
        return self.layers(batch).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class StepTimes(L.Callback):
    """Notes when every step ended."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []

    def on_train_batch_end(self, *_: object, **__: object) -> None:
        self.ends_s.append(time.perf_counter())

    def step_times_s(self) -> list[float]:
        """Step times, warm-up left out."""
        return [
            after - before
            for before, after in zip(self.ends_s[10:], self.ends_s[11:], strict=False)
        ]


def timed(callback: SLACallback, spent_s: dict[str, list[float]]) -> SLACallback:
    """Notes how long each of the callback's own hooks takes."""
    for name in HOOKS:
        hook = getattr(callback, name)

        def measured(
            *args: object, _hook: object = hook, _name: str = name, **kwargs: object
        ) -> None:
            start = time.perf_counter()
            _hook(*args, **kwargs)
            spent_s[_name].append(time.perf_counter() - start)

        setattr(callback, name, measured)
    return callback


def fit(module: Busy, ranks: int, steps: int, callbacks: list[L.Callback]) -> None:
    """Trains once."""
    trainer = L.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        plugins=[LightningEnvironment()],
        max_steps=steps,
        max_epochs=-1,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Batches(10 * steps), batch_size=None))


def job(options: argparse.Namespace) -> None:
    """One paired measurement, in every rank; rank 0 prints what it saw as JSON."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = Busy(options.step_ms)
    step_times: dict[str, list[list[float]]] = {"without": [], "with": []}
    spent_s: dict[str, list[float]] = {name: [] for name in HOOKS}
    for number in range(2 * options.pairs):
        name = ("without", "with", "with", "without")[number % 4]
        times = StepTimes()
        extra = [SLACallback(run_dir=options.run_dir)] if name == "with" else []
        if options.direct and extra:
            extra = [timed(extra[0], spent_s)]
        fit(module, options.ranks, options.steps, [*extra, times])
        step_times[name].append(times.step_times_s())
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        direct = {}
        if options.direct:
            direct["median_us"] = sum(median(times) for times in spent_s.values()) * 1e6
            direct["mean_us"] = sum(mean(times) for times in spent_s.values()) * 1e6
        print(json.dumps({**step_times, **direct}))


def measure(
    ranks: int, step_ms: float, steps: int, pairs: int, *, direct: bool
) -> dict[str, object]:
    """Runs :func:`job` in processes of its own."""
    with scratch() as folder:
        command = [sys.executable, __file__, "--job", f"--ranks={ranks}", f"--step-ms={step_ms}"]
        command += [f"--steps={steps}", f"--pairs={pairs}", f"--run-dir={folder}"]
        command += ["--direct"] if direct else []
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=1800,
            check=True,
        )
    return json.loads(done.stdout.splitlines()[-1])


def recorder_us() -> float:
    """Microseconds that one step of the recorder takes: six phases, one record."""
    recorder = Recorder(Block.create(rank=0, num_slots=4096))
    phases = [int(p) for p in (Phase.DATA, Phase.BETWEEN, Phase.FORWARD)]
    optimizer, between = int(Phase.OPTIMIZER), int(Phase.BETWEEN)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for step in range(5000):
            for phase in phases:
                recorder.enter(phase)
            recorder.enter_synced_backward()
            recorder.own_work_ends()
            recorder.leave_synced_backward(optimizer)
            recorder.enter(between)
            recorder.publish(recorder.end_step(step, loss=1.0, batch=step, flags=layout.HAS_LOSS))
        best = min(best, (time.perf_counter() - start) / 5000 * 1e6)
    return best


def main() -> None:
    """Prints the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", action="store_true")
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--run-dir", default=str(Path.cwd() / "sla_runs"))
    options = parser.parse_args()
    if options.job:
        job(options)
        return
    print(heading("What the contract costs the trainer"))
    print(f"Recorder alone, best of 20 x 5,000 steps: {recorder_us():.1f} us a step.\n")
    for ranks in (1, 2):
        seen = measure(ranks, 0, 2000, 2, direct=True)
        print(
            f"Inside the callback's own hooks, {ranks} rank(s): median {seen['median_us']:.1f} us, "
            f"mean {seen['mean_us']:.1f} us a step.\n"
        )
    print(
        "| ranks | step | pairs | without ms | with ms | difference us | difference % | p10-p90 % |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    pairs = options.pairs
    for ranks, step_ms, steps in ((1, 0, 1000), (1, 50, 60), (2, 50, 60)):
        seen = measure(ranks, step_ms, steps, pairs, direct=False)
        without = [median(times) for times in seen["without"]]
        with_it = [median(times) for times in seen["with"]]
        shares = [(b - a) / a * 100 for a, b in zip(without, with_it, strict=True)]
        us = [(b - a) * 1e6 for a, b in zip(without, with_it, strict=True)]
        print(
            f"| {ranks} | {step_ms or 'none'} | {pairs} | {mean(without) * 1e3:.3f} "
            f"| {mean(with_it) * 1e3:.3f} | {median(us):.0f} | {median(shares):.2f} "
            f"| {quantile(shares, 0.1):.2f} to {quantile(shares, 0.9):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
