"""What looking at gradients costs a step, and how long a snapshot holds training up.

    python benchmarks/gradients.py
    python benchmarks/gradients.py --steps 200 --only cost
    python benchmarks/gradients.py --only snapshot --accelerator gpu --mebibytes 100 1000

Costs are processor time of the training thread, so that what the machine does meanwhile
counts little; on and off take turns. Prints a Markdown page.
"""

import argparse
import logging
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import lightning as L
import torch
from _machine import heading, quantile
from _runs import scratch
from torch.utils.data import DataLoader

from sla_lightning import SLACallback
from slav1.contract import Contract
from slav1.contract.settings import GradientSettings
from slav1.decision import Action
from slav1.gradients import GradientWatch
from slav1.ledger import read_ledger

SHAPES = ((4, 256), (16, 4096), (300, 1024), (300, 16384))
WAYS: dict[str, dict[str, Any]] = {
    "norm": {"zero_share_every": 0},
    "norm, zeros": {},
    "norm, zeros, reflex": {"has_reflex": True},
    "the same, each norm": {"has_reflex": True, "norm_every": 1},
    "the same, adaptive clipping": {"has_reflex": True, "norm_every": 1, "clip": "adaptive"},
}
SNAPSHOTS_MIB = [10, 100, 300]


def cost(num: int, size: int, num_steps: int) -> list[str]:
    """Rows of the table for a model of ``num`` parameters with ``size`` elements each."""
    parameters = [torch.nn.Parameter(torch.randn(size)) for _ in range(num)]
    gradients = [torch.randn(size) for _ in range(num)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-6)
    watches, spent_us = {}, {name: [] for name in WAYS}
    for name, settings in WAYS.items():
        given = dict(settings)
        has_reflex = given.pop("has_reflex", False)
        watches[name] = GradientWatch(GradientSettings(**given), has_reflex=has_reflex, tell=print)
    updates_us = []
    names = list(WAYS)
    for number in range(num_steps):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        # Whoever looks first finds nothing in the cache, so each does in turn.
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            watch = watches[name]
            start_ns = time.thread_time_ns()
            watch.before_update(optimizer, are_whole=True)
            watch.take()
            spent_us[name].append((time.thread_time_ns() - start_ns) / 1000)
        start_ns = time.thread_time_ns()
        optimizer.step()
        updates_us.append((time.thread_time_ns() - start_ns) / 1000)
    rows = []
    for name, costs_us in spent_us.items():
        # The first steps plan and touch memory.
        kept = costs_us[10:]
        mean_us, update_us = sum(kept) / len(kept), sum(updates_us[10:]) / len(kept)
        rows.append(
            f"| {num} x {size} | {name} | {mean_us:.1f} | {median(kept):.1f} | "
            f"{quantile(kept, 0.99):.0f} | {100 * mean_us / update_us:.2f} |"
        )
    rows.append(f"| {num} x {size} | AdamW's own update | {update_us:.0f} | | | 100 |")
    return rows


class Large(L.LightningModule):
    """Parameters that with the moments of AdamW make so many MiB."""

    def __init__(self, mebibytes: int) -> None:
        super().__init__()
        num = max(1, mebibytes // 12)
        self.parts = torch.nn.ParameterList([torch.randn(1 << 18) for _ in range(num)])

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return sum(part[:256].square().mean() for part in self.parts) * batch.mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class Snap(L.Callback):
    """Orders snapshots, as the contract would, some steps apart."""

    def __init__(self, ours: SLACallback) -> None:
        self._ours = ours

    def on_train_batch_end(self, *_: object, **__: object) -> None:
        fit = self._ours._fit
        if fit is not None and fit.watch.step % 10 == 5:
            fit.mild(Action.SNAPSHOT)


def snapshots(mebibytes: int, accelerator: str) -> str:
    """Row of the table for a state of that size."""
    with scratch() as folder:
        contract = Contract.level("L1").override(checkpoint={"max_snapshots": 5})
        ours = SLACallback(contract, run_dir=str(folder))
        trainer = L.Trainer(
            accelerator=accelerator,
            devices=1,
            max_steps=50,
            max_epochs=-1,
            callbacks=[ours, Snap(ours)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Large(mebibytes), DataLoader(torch.ones(500, 1), batch_size=None))
        assert ours.run_folder is not None
        lines = read_ledger(Path(ours.run_folder) / "ledger.jsonl")
        blocked_ms = [
            1000 * line.evidence["blocked_s"] for line in lines if "blocked_s" in line.evidence
        ]
    cells = [f"{blocked_ms[0]:.0f}", f"{median(blocked_ms[2:]):.0f}", f"{max(blocked_ms):.0f}"]
    return f"| {mebibytes} | {' | '.join(cells)} |"


def main() -> None:
    """Prints the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--only", choices=("cost", "snapshot"))
    parser.add_argument("--accelerator", default="cpu", help="where snapshots are taken from")
    parser.add_argument("--mebibytes", type=int, nargs="+", default=SNAPSHOTS_MIB)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(heading("Gradients: cost of a look, blocked time of a snapshot"))
    if options.only != "snapshot":
        torch.set_num_threads(1)
        print("## Cost of a step, processor time of the training thread, one thread of torch\n")
        print("| parameters | what is looked at | mean us | median | p99 | % of the update |")
        print("| --- | --- | ---: | ---: | ---: | ---: |")
        for num, size in SHAPES:
            print("\n".join(cost(num, size, options.steps)))
    if options.only != "cost":
        print("\n## How long a snapshot holds training up\n")
        print("| MiB of state | first, ms | from the third on, median | longest |")
        print("| ---: | ---: | ---: | ---: |")
        for mebibytes in options.mebibytes:
            print(snapshots(mebibytes, options.accelerator), flush=True)


if __name__ == "__main__":
    main()
