"""A training whose ranks have seeds of their own and a batch norm, and whose rank 0 keeps an
average of the weights after a while; faults by ``SLA_INJECT``.

Arguments: the host, number of steps. ``REPLAY`` is the share of micro-batches to run twice; with
``WRONG``, as in ``rank=1,step=7``, a layer computes one number wrong, once.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import toys
import xxhash
from torch import Tensor, nn

from sla_accelerate import SLAAccelerator

warnings.filterwarnings("ignore")
RANK, NUM_RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
RATIO = float(os.environ.get("REPLAY", "0"))
CLAUSES: dict[str, Any] = {
    "replica_divergence": {"every_steps": 5, "replay_ratio": RATIO},
    "seeds": {"probe": RATIO > 0},
}
STEP_S = 0.02
AVERAGE_FROM_STEP = 14
NOW = {"step": -1, "num_wrong": 0}


def network() -> nn.Sequential:
    """Weights of this rank's own; the host has to make them equal."""
    torch.manual_seed(100 + RANK)
    made = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    if wrong := os.environ.get("WRONG"):
        rank, step = (int(part.partition("=")[2]) for part in wrong.split(","))

        def spoil(layer: nn.Module, given: object, out: Tensor) -> Tensor:
            if (RANK, NOW["step"]) != (rank, step) or NOW["num_wrong"]:
                return out
            NOW["num_wrong"] += 1
            error = torch.zeros_like(out)
            error[0, 3] = 1e-3
            return out + error

        made[0].register_forward_hook(spoil)
    return made


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.average = network().requires_grad_(False)

    def on_train_batch_end(self, *_: Any) -> None:
        if RANK == 0 and self.global_step > AVERAGE_FROM_STEP:
            for mean, now in zip(self.average.parameters(), self.net.parameters(), strict=True):
                mean.lerp_(now.detach(), 0.1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        time.sleep(STEP_S)
        NOW["step"] = self.global_step
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def with_lightning(num_steps: int) -> nn.Module:
    """Trains with a callback; returns the network."""
    callback = toys.SLACallback(toys.contract(checkpoint={"every_steps": 4}, **CLAUSES))
    model = Net()
    trainer = toys.trainer(callback, devices=NUM_RANKS, strategy="ddp", max_steps=num_steps)
    trainer.fit(model, toys.batches(num_steps, num_ranks=NUM_RANKS))
    toys.tell("steps", num_steps=trainer.global_step, stopped_at=callback.stopped_at)
    return model.net


def with_accelerate(num_steps: int) -> nn.Module:
    """Trains with a loop; returns the network."""
    accelerator = SLAAccelerator(contract=toys.contract(**CLAUSES), cpu=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = toys.batches(num_steps, num_ranks=NUM_RANKS)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, targets in loader:
        time.sleep(STEP_S)
        NOW["step"] = accelerator.sla_last_step + 1
        accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.sla_last_step == 3:
            accelerator.save_state(Path(os.environ["SLA_RUN_DIR"]) / "saved")
    toys.tell(
        "steps", num_steps=accelerator.sla_last_step + 1, stopped_at=accelerator.sla_stopped_at
    )
    accelerator.end_training()
    network_inside: nn.Module = accelerator.unwrap_model(model)
    return network_inside


def main() -> None:
    host, num_steps = sys.argv[1], int(sys.argv[2])
    train = with_lightning if host == "lightning" else with_accelerate
    model = train(num_steps)
    weights = xxhash.xxh3_128()
    for parameter in model.parameters():
        weights.update(parameter.detach().numpy().tobytes())
    statistics = json.dumps([buffer.tolist() for buffer in model.buffers()])
    toys.tell("wrong", num=NOW["num_wrong"])
    toys.tell("held", weights=weights.hexdigest(), statistics=statistics)


if __name__ == "__main__":
    main()
