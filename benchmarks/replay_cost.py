"""Micro-batches run twice in a real loop: what a share of them costs, as Markdown.

    python benchmarks/replay_cost.py --rounds 10

One process trains a small transformer through ``SLAAccelerator``; blocks of steps with and
without the replay take turns. Times are processor time of the training thread, which does all
of it: other things that the machine does are left out.
"""

import argparse
import logging
import tempfile
import time
from statistics import median
from typing import Any

import torch
from _machine import heading
from torch import nn

from sla_accelerate import SLAAccelerator, _runs
from slav1.contract import Contract
from slav1.replicas import StepReplay

RATIOS = (0.0, 0.01, 0.1, 1.0)
BLOCK_STEPS = 100


def contract_with(ratio: float) -> Contract:
    return Contract.level("L1").override(replica_divergence={"replay_ratio": ratio})


class Loop:
    """A training whose replay can be exchanged between steps."""

    def __init__(self, width: int, run_dir: str) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True)
        model: Any = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        accelerator = SLAAccelerator(contract=contract_with(1.0), run_dir=run_dir, cpu=True)
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.accelerator = accelerator
        self.inputs = torch.randn(8, 32, width)
        watch = _runs.current()
        assert watch is not None
        self.watch = watch

    def steps(self, number: int) -> float:
        """Makes steps; seconds of one, forward and backward's share of it aside."""
        start_s = time.thread_time()
        for _ in range(number):
            loss = self.model(self.inputs).square().mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return (time.thread_time() - start_s) / number

    def forward_and_backward(self, number: int) -> float:
        """Seconds of a forward and a backward alone."""
        start_s = time.thread_time()
        for _ in range(number):
            self.model(self.inputs).square().mean().backward()
        self.optimizer.zero_grad()
        return (time.thread_time() - start_s) / number


def replay_of(loop: Loop, ratio: float) -> StepReplay | None:
    """A replay that has learned what to expect; None for no share."""
    if not ratio:
        return None
    session = loop.watch.session
    session.contract = contract_with(ratio)
    made = StepReplay(session, loop.watch.prepared.modules, tell_first=None)
    loop.watch.replay = made
    made.expect(loop.watch.step + 1)
    loop.steps(2)
    made.drop()
    return made


def measure(loop: Loop, rounds: int) -> None:
    replays = {ratio: replay_of(loop, ratio) for ratio in RATIOS}
    alone: list[float] = []
    times: dict[float, list[float]] = {ratio: [] for ratio in RATIOS}
    for _ in range(rounds):
        loop.watch.replay = None
        alone.append(loop.forward_and_backward(20))
        for ratio, replay in replays.items():
            loop.watch.replay = replay
            if replay is not None:
                replay.expect(loop.watch.step + 1)
            num = BLOCK_STEPS if ratio < 0.1 else BLOCK_STEPS // 4
            times[ratio].append(loop.steps(num))
            if replay is not None:
                replay.drop()
    base_ms = median(times[0.0]) * 1e3
    both_ms = median(alone) * 1e3
    for ratio in RATIOS:
        step_ms = sum(times[ratio]) / rounds * 1e3
        without_ms = sum(times[0.0]) / rounds * 1e3
        more = (step_ms - without_ms) / both_ms
        told = f"{more:.2%}" if ratio else "-"
        print(f"| {base_ms:.2f} | {both_ms:.2f} | {ratio:g} | {step_ms:.3f} | {told} |", flush=True)


def cost_of_a_step_without(loop: Loop) -> None:
    """What is left where nothing is asked for, and where a step is not chosen."""
    loop.watch.replay = None
    number = 1_000_000
    start_s = time.thread_time()
    for _ in range(number):
        if loop.watch.replay is not None:
            raise AssertionError
    nothing_ns = (time.thread_time() - start_s) / number * 1e9
    replay = replay_of(loop, 1e-9)
    assert replay is not None
    start_s = time.thread_time()
    for step in range(100_000):
        replay.expect(step)
        replay.begin_backward()
        replay.end_backward(step)
    idle_us = (time.thread_time() - start_s) / 100_000 * 1e6
    print(
        f"\nRatio 0: four looks at an attribute a step, {nothing_ns:.0f} ns each. A step that is "
        f"not chosen: {idle_us:.1f} us.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    logging.getLogger("slav1").setLevel(logging.ERROR)
    print(heading("Micro-batches run twice: cost"))
    print("| step (ms) | forward + backward (ms) | ratio | step with it (ms) | more, of f + b |")
    print("| --: | --: | --: | --: | --: |")
    with tempfile.TemporaryDirectory() as run_dir:
        for width in (32, 128):
            loop = Loop(width, run_dir)
            measure(loop, rounds)
            if width == 128:
                cost_of_a_step_without(loop)
            loop.accelerator.end_training()


if __name__ == "__main__":
    main()
