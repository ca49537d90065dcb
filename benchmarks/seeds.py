"""The matrix of the contract's source: what seeds do to the loss and to the replicas.

Four ranks train the same small classifier with dropout on noisy data, seeded in four ways, with
DDP or with a mean of the gradients alone, and with the contract looking on or setting seeds.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from _machine import heading
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from slav1.contract import SeedSettings
from slav1.seeds import Seeds
from slav1.seeds.generators import UNSEEDED
from slav1.session.rendezvous import store_of_group
from slav1.session.store_peers import StorePeers

NUM_STEPS = 100
WINDOW = 20
"""Steps up to the last one over which the loss of one rank varies."""

SEEDINGS = {
    "none": "nobody seeds",
    "same": "all ranks seed alike",
    "by_rank": "each rank seeds by its number",
}
WRAPPERS = {"ddp": "DDP", "mean": "mean of gradients"}
CONTRACTS = {"check": "looks on", "set": "sets seeds"}


class Peers:
    """The ranks through the process group's store, without a run."""

    counts: ClassVar[dict[str, int]] = {}
    """Meetings so far, by topic."""

    def __init__(self) -> None:
        store = store_of_group()
        assert store is not None
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.io_percent = 100
        self.found: list[str] = []
        self._meetings = StorePeers(
            store, rank=self.rank, world_size=self.world_size, name="benchmark"
        )

    def gather(self, topic: str, value: Any, *, limit_s: float) -> list[Any]:
        count = Peers.counts[topic] = Peers.counts.get(topic, -1) + 1
        raw = json.dumps(value).encode()
        return [json.loads(one) for one in self._meetings.gather(topic, count, raw, limit_s)]

    def record(self, kind: str, message: str, **evidence: Any) -> None:
        del kind, message
        self.found += evidence.get("wrong", [])


def batches(rank: int, world_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's part of the same data for everybody, with noise of the rank's own."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(NUM_STEPS * 16 * world_size, 16, generator=generator)
    truth = torch.randn(16, 4, generator=generator)
    labels = (inputs @ truth).argmax(1)
    order = torch.randperm(len(inputs), generator=generator)[rank::world_size]
    for chosen in order.split(16):
        noise = torch.randn(16, 16) + torch.from_numpy(np.random.randn(16, 16)).float()  # noqa: NPY002 - the global one
        yield inputs[chosen] + 0.3 * noise * random.random(), labels[chosen]


def seed(how: str, rank: int, run: int) -> None:
    """Seeds as a script does; where nobody does, torch begins with the same numbers everywhere,
    Python and numpy anywhere."""
    number = 1000 * run + (rank if how == "by_rank" else 0)
    is_left = how == "none"
    random.seed(None if is_left else number)
    np.random.seed(None if is_left else number)  # noqa: NPY002 - the global one
    torch.manual_seed(UNSEEDED if is_left else number)


def train(seeding: str, wrapper: str, contract: str, run: int) -> dict[str, Any]:
    """Trains once; returns this rank's losses, weights, and first dropout mask."""
    peers = Peers()
    seed(seeding, peers.rank, run)
    with tempfile.TemporaryDirectory() as folder:
        seeds = Seeds(SeedSettings(mode=contract), peers, Path(folder), {})  # type: ignore[arg-type]
        seeds.begin()
        model: nn.Module = nn.Sequential(
            nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4)
        )
        inner = model
        if wrapper == "ddp":
            model = DistributedDataParallel(model)
        seeds.spread()
        # Here the matrix is what is looked for, so weights that differ stay as they are.
        weights = dict(inner.named_parameters())
        seeds.compare("resume", step=0, weights=weights)
    mask = nn.functional.dropout(torch.ones(64), 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for inputs, labels in batches(peers.rank, peers.world_size):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        if wrapper == "mean":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                assert parameter.grad is not None
                parameter.grad /= peers.world_size
        optimizer.step()
        losses.append(loss.item())
    vector = torch.cat([parameter.detach().flatten() for parameter in inner.parameters()])
    return {
        "losses": losses,
        "weights": vector.tolist(),
        "mask": mask.tolist(),
        "found": peers.found,
    }


def rank_main(num_runs: int) -> None:
    """One rank: trains every cell of the matrix; rank 0 prints what came of it."""
    dist.init_process_group("gloo")
    for cell in cells():
        found = []
        for run in range(1, num_runs + 1):
            told: Any = [None] * dist.get_world_size()
            dist.all_gather_object(told, train(*cell, run))
            found.append(figures(told))
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def launch(num_ranks: int, num_runs: int) -> Iterator[list[dict[str, Any]]]:
    """Runs all ranks; yields the figures of all runs of each cell, in order."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(num_ranks):
        own = {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1"}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, __file__, "--runs", str(num_runs), "--is-rank"]
        processes.append(
            subprocess.Popen(
                command, env={**os.environ, **own, **place}, stdout=subprocess.PIPE, text=True
            )
        )
    output = processes[0].stdout
    assert output is not None
    yield from map(json.loads, output)
    statuses = [process.wait(timeout=60) for process in processes]
    if any(statuses):
        raise RuntimeError("A rank failed; its output says why.")


def cells() -> Iterator[tuple[str, str, str]]:
    """Seeding, wrapper and contract of each cell."""
    for wrapper in WRAPPERS:
        for seeding in SEEDINGS:
            for contract in CONTRACTS:
                yield seeding, wrapper, contract


def figures(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the source looks at, and whether masks are shared."""
    at_end = [rank["losses"][-1] for rank in ranks]
    first, last = (torch.tensor(ranks[number]["weights"]) for number in (0, -1))
    return {
        "across": statistics.pvariance(at_end),
        "within": statistics.pvariance(ranks[0]["losses"][-WINDOW:]),
        "loss": statistics.fmean(at_end),
        "weights": float((first - last).norm()),
        "masks": len({tuple(rank["mask"]) for rank in ranks}),
        "weights_found": any("weights" in one for one in ranks[0]["found"]),
    }


def page(num_ranks: int, num_runs: int) -> Iterator[str]:
    """The lines of the result page."""
    yield heading(f"Seeds: loss and replicas of {num_ranks} ranks, with and without the contract")
    yield (
        f"\n{num_ranks} gloo ranks, {NUM_STEPS} steps, {num_runs} runs a row; medians. Variance "
        f"across: of the ranks' losses at step {NUM_STEPS}; within: of rank 0's last {WINDOW} "
        "losses. Weights: L2 norm of the difference between the first and the last rank after the "
        "last step. Masks: different dropout masks among the ranks before the first step. Weights "
        "named: runs in which the comparison of ranks said that weights differ.\n"
    )
    names = "variance across | within | mean loss | weights | masks | weights named"
    yield f"| script | update | contract | {names} |"
    yield "| --- | --- | --- | --: | --: | --: | --: | --: | --: |"
    for cell, runs in zip(cells(), launch(num_ranks, num_runs), strict=True):
        seeding, wrapper, contract = cell
        mid = {
            name: statistics.median(run[name] for run in runs)
            for name in ("across", "within", "loss", "weights", "masks")
        }
        named = sum(run["weights_found"] for run in runs)
        yield (
            f"| {SEEDINGS[seeding]} | {WRAPPERS[wrapper]} | {CONTRACTS[contract]} | "
            f"{mid['across']:.4f} | {mid['within']:.4f} | {mid['loss']:.3f} | "
            f"{mid['weights']:.1e} | {mid['masks']:.0f} of {num_ranks} | {named} of {num_runs} |"
        )


def main() -> None:
    """Prints the result page, or is one rank of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--is-rank", action="store_true")
    options = parser.parse_args()
    if options.is_rank:
        rank_main(options.runs)
        return
    for line in page(options.ranks, options.runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
