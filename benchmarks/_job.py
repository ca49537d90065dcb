"""A Lightning job whose steps take a given time, for benchmarks to watch and disturb."""

import argparse
import json
import logging
import sys
import time
import warnings

import lightning as L
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch.utils.data import DataLoader, Dataset

from sla_lightning import SLACallback
from slav1 import Contract


class Noise(Dataset):
    """Endless enough random batches; ``__getitem__`` costs next to nothing."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._item = torch.randn(8, 64)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._item


class Waiting(L.LightningModule):
    """A small model; a pause in the forward stands for the device's work."""

    def __init__(self, step_ms: float, noise: float, seed: int, mebibytes: int = 0) -> None:
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
        # Adam keeps two further values for each of these.
        self.ballast = torch.nn.Parameter(torch.zeros(mebibytes * (1 << 18) // 3))
        self._step_s = step_ms / 1000
        self._noise = noise
        self._clock_hz = 0.0
        self._random = torch.Generator().manual_seed(seed)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        share = torch.randn((), generator=self._random).item()
        step_s = max(0.0, self._step_s * (1 + self._noise * share))
        if batch.is_cuda:
            # A kernel of a known length: the host does not wait for it.
            torch.cuda._sleep(int(step_s * self.clock_hz))
        else:
            time.sleep(step_s)
        return self.layer(batch).pow(2).mean() + self.ballast.sum()

    @property
    def clock_hz(self) -> float:
        """Cycles a second that ``torch.cuda._sleep`` counts, measured once."""
        if self._clock_hz == 0.0:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            torch.cuda._sleep(100_000_000)
            end.record()
            end.synchronize()
            self._clock_hz = 100_000_000 / (start.elapsed_time(end) / 1000)
        return self._clock_hz

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.ballast.numel():
            return torch.optim.Adam(self.parameters(), lr=1e-4)
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Ends(L.Callback):
    """Prints when each step ended on rank 0."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        if trainer.is_global_zero:
            print("ended", trainer.global_step - 1, time.time_ns(), flush=True)


def main() -> None:
    """Trains as told by the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=50)
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument("--mebibytes", type=int, default=0, help="weights and optimizer")
    parser.add_argument("--run-dir", default="sla_runs")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--override", default="{}")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    contract = Contract.level("L1").override(**json.loads(options.override))
    trainer = L.Trainer(
        accelerator=options.accelerator,
        devices=options.ranks,
        strategy="ddp" if options.ranks > 1 else "auto",
        plugins=[LightningEnvironment()],
        max_steps=options.steps,
        max_epochs=-1,
        callbacks=[
            SLACallback(contract=contract, run_dir=options.run_dir),
            *([Ends()] if options.mebibytes else []),
        ],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Waiting(options.step_ms, options.noise, trainer.global_rank, options.mebibytes)
    trainer.fit(model, DataLoader(Noise(options.steps * options.ranks * 2), batch_size=None))


if __name__ == "__main__":
    sys.exit(main())
