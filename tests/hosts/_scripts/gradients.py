"""Two ranks on which gradients go wrong in three ways; ``lightning`` or ``accelerate``."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import toys
from torch import Tensor, nn

NAN_STEP, TALL_STEP, THIN_STEP, NUM_STEPS = 10, 70, 110, 150
RATE = 1e-7
CLAUSES = {
    "loss_variance": {"mode": "enforce"},
    "gradients": {"zero_share_every": 1, "decay_steps": 12, "decay": 0.25},
    "checkpoint": {"every_steps": 40},
}


class Model(nn.Module):
    """A linear model whose gradient grows, or thins out, at a given step; the loss does not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(16, 1)
        self.step = 0
        self.linear.weight.register_hook(self.spoilt)

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(0.01)
        return self.linear(inputs).square().mean()

    def spoilt(self, gradient: Tensor) -> Tensor:
        if TALL_STEP <= self.step < TALL_STEP + 2:
            return gradient * 1000.0
        if self.step >= THIN_STEP:
            kept = torch.zeros_like(gradient)
            kept[:, :4] = 1.0
            return gradient * kept
        return gradient


def batch(rank: int, number: int) -> Tensor:
    """One batch of two samples, the same in every run."""
    generator = torch.Generator().manual_seed(1000 * rank + number)
    inputs = 1.0 + 0.05 * torch.randn(2, 16, generator=generator)
    return inputs * float("nan") if (rank, number) == (1, NAN_STEP) else inputs


class Batches(torch.utils.data.Dataset[Tensor]):
    """The batches of one rank, in order."""

    def __len__(self) -> int:
        return NUM_STEPS

    def __getitem__(self, number: int) -> Tensor:
        return batch(int(os.environ["RANK"]), number)


# A class of torch's has hooks of its own as soon as it was used by itself.
torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=RATE)


class Sgd(torch.optim.SGD):
    """Notes the rate that each update uses. Derived, so each update runs two sets of hooks."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=RATE, momentum=0.9)
        self.used: list[float] = []

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)

    def _init_group(self, group: Any, *rest: Any) -> Any:
        self.used.append(float(group["lr"]))
        return super()._init_group(group, *rest)


class AllBatches(torch.utils.data.Dataset[Tensor]):
    """The batches of both ranks in turn, as Accelerate deals them out."""

    def __len__(self) -> int:
        return 2 * NUM_STEPS

    def __getitem__(self, number: int) -> Tensor:
        return batch(number % 2, number // 2)


def with_lightning() -> dict[str, Any]:
    class Module(toys.pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, inputs: Tensor, batch_idx: int) -> Tensor:
            self.model.step = self.global_step
            return self.model(inputs)

        def configure_optimizers(self) -> Any:
            self.sgd = Sgd(self.parameters())
            return self.sgd

    module = Module()
    callback = toys.SLACallback(toys.contract(**CLAUSES))
    trainer = toys.trainer(
        callback, devices=2, strategy="ddp", max_epochs=1, use_distributed_sampler=False
    )
    loader = torch.utils.data.DataLoader(Batches(), batch_size=None)
    trainer.fit(module, loader)
    return {
        "stopped_at": callback.stopped_at,
        "folder": str(callback.run_folder),
        "used": module.sgd.used,
        "weights": module.model.linear.weight.flatten().tolist(),
    }


def with_accelerate() -> dict[str, Any]:
    from sla_accelerate import SLAAccelerator

    accelerator = SLAAccelerator(
        contract=toys.contract(**CLAUSES, straggler={"mode": "off"}), cpu=True
    )
    model, loader = Model(), torch.utils.data.DataLoader(AllBatches(), batch_size=1)
    sgd = Sgd(model.parameters())
    wrapped, optimizer = accelerator.prepare(model, sgd)
    loader = accelerator.prepare_data_loader(loader)
    seen = []
    for inputs in loader:
        model.step = accelerator.sla_last_step + 1
        loss = wrapped(inputs)
        optimizer.zero_grad()
        accelerator.backward(loss)
        if len(seen) % 2:
            accelerator.clip_grad_norm_(wrapped.parameters(), 1e9)
        optimizer.step()
        seen.append(inputs.tolist())
    accelerator.end_training()
    return {
        "stopped_at": accelerator.sla_stopped_at,
        "folder": str(accelerator.sla_run_folder) if accelerator.sla_run_folder else None,
        "used": sgd.used,
        "weights": model.linear.weight.flatten().tolist(),
        "num_seen": len(seen),
    }


def main() -> None:
    said = with_lightning() if sys.argv[1] == "lightning" else with_accelerate()
    Path(os.environ["SLA_RUN_DIR"], f"told-{os.environ['RANK']}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
    sys.exit(0)
