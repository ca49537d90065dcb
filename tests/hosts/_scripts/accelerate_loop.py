"""A hand-written training loop under contract, on real ranks; options come as JSON."""

import json
import os
import sys
import time
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sla_accelerate import SLAAccelerator, TrainingStoppedError
from slav1.contract import Contract

warnings.filterwarnings("ignore")

RANK, NUM_RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEFAULTS: dict[str, Any] = {
    "num_steps": 60,
    "step_s": 0.005,
    "accumulate": 1,
    "optimizers": 1,
    "gather": False,
    "evaluate_s": 0.0,
    "uneven": False,
    "end": "end_training",
    "on_stop": "raise",
    "clauses": {},
}


def main() -> None:
    """Trains, and tells what came of it."""
    options = DEFAULTS | json.loads(sys.argv[1])
    contract = Contract.level("L1").override(
        hang={"limit_s": 2.0, "first_step_limit_s": 60.0},
        monitor={"grace_s": 1.0},
        **options["clauses"],
    )
    accelerator = SLAAccelerator(
        contract=contract,
        on_stop=options["on_stop"],
        gradient_accumulation_steps=options["accumulate"],
        cpu=True,
    )
    try:
        num_batches = train(accelerator, options)
        tell("ended", num_batches=num_batches, stopped_at=accelerator.sla_stopped_at)
    except TrainingStoppedError as stop:
        tell("stopped", step=stop.step)
        raise
    finally:
        if options["end"] == "finally":
            accelerator.end_training()
    if options["end"] == "end_training":
        accelerator.end_training()


def train(accelerator: SLAAccelerator, options: dict[str, Any]) -> int:
    """Runs epochs until there were enough steps; returns the number of batches."""
    torch.manual_seed(0)
    models = [nn.Linear(4, 1) for _ in range(options["optimizers"])]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    models = [accelerator.prepare(model) for model in models]
    optimizers = [accelerator.prepare(optimizer) for optimizer in optimizers]
    num = 2 * (20 * NUM_RANKS - 1 if options["uneven"] else 20 * NUM_RANKS)
    if options["uneven"]:
        # The host joins uneven inputs on GPUs only, but DDP does so anywhere.
        type(accelerator).multi_device = True
    loader = accelerator.prepare(batches(num))
    num_batches = 0
    while num_batches < options["num_steps"] * options["accumulate"]:
        joined = accelerator.join_uneven_inputs(models, even_batches=False)
        with joined if options["uneven"] else nullcontext():
            for batch in loader:
                num_batches += 1
                step(accelerator, options, models, optimizers, batch)
                if accelerator.sla_should_stop:
                    return num_batches
        if options["evaluate_s"]:
            evaluate(accelerator, options, models[0])
    return num_batches


def step(
    accelerator: SLAAccelerator,
    options: dict[str, Any],
    models: list[Any],
    optimizers: list[Any],
    batch: tuple[Tensor, Tensor],
) -> None:
    """One batch."""
    inputs, targets = batch
    for model, optimizer in zip(models, optimizers, strict=True):
        with accelerator.accumulate(model):
            time.sleep(options["step_s"])
            loss = nn.functional.mse_loss(model(inputs), targets)
            if options["gather"]:
                accelerator.gather(loss.detach())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


def evaluate(accelerator: SLAAccelerator, options: dict[str, Any], model: Any) -> None:
    """An evaluation on the main process, while the others go on to their next step."""
    if accelerator.is_main_process:
        model.eval()
        accelerator.unwrap_model(model)
        time.sleep(options["evaluate_s"])
        model.train()


def batches(num: int) -> DataLoader[Any]:
    """A loader over ``num`` items, two a batch, the same in every process."""
    inputs = torch.randn(num, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=2)


def tell(name: str, **values: Any) -> None:
    """Writes one line that the test reads back."""
    print(json.dumps({"tell": name, **values}), flush=True)


if __name__ == "__main__":
    main()
