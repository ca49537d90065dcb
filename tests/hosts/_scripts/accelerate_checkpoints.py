"""A loop with an ``SLAAccelerator`` that saves, resumes and rolls back, in every sharding.

Options come as JSON: a list with one set for each training; each is as in a new process.
Each rank writes what a training took and what it held into ``log-<name>-<rank>.json``.
"""

import hashlib
import json
import os
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import (
    DeepSpeedPlugin,
    DistributedType,
    FullyShardedDataParallelPlugin,
    InitProcessGroupKwargs,
    ProjectConfiguration,
    set_seed,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sla_accelerate import SLAAccelerator, _runs
from slav1.contract import Contract

warnings.filterwarnings("ignore")

RANK = int(os.environ["RANK"])
DEFAULTS: dict[str, Any] = {
    "name": "run",
    "mode": "ddp",
    "num_epochs": 2,
    "save_at": [],
    "load": None,
    "seed": 1,
    "seedable": True,
    "clauses": {"monitor": {"kind": "off"}},
    "naming": False,
    "total_limit": None,
    "safe": True,
    "epochs_of_ours": True,
    "skip": True,
    "stop_after": None,
    "nan_batches": [],
    "damage": None,
    "poison": None,
}


def draws() -> list[float]:
    """A number from each of the global generators."""
    return [torch.rand(()).item(), random.random(), float(np.random.rand())]  # noqa: NPY002


class Noisy(Dataset[Any]):
    """Items that say which they are, with noise from three generators."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        noise = draws()
        return index, torch.tensor([index / 40, *noise])


def accelerator_for(options: dict[str, Any]) -> SLAAccelerator:
    """An accelerator in the mode of the options."""
    how: dict[str, Any] = {}
    mode = options["mode"]
    if mode.startswith("fsdp2"):
        # Accelerate shards on GPUs only; told that these are some, it does so anywhere.
        PartialState(cpu=True)
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        kind = "FULL_STATE_DICT" if mode == "fsdp2-full" else "SHARDED_STATE_DICT"
        how["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            fsdp_version=2, state_dict_type=kind, auto_wrap_policy="no_wrap"
        )
    elif mode.startswith("zero"):
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # It only tells models of transformers, which need not be installed, about ZeRO.
        DeepSpeedPlugin.set_deepspeed_weakref = lambda self: None
        how["kwargs_handlers"] = [InitProcessGroupKwargs(backend="gloo")]
        how["deepspeed_plugin"] = DeepSpeedPlugin(
            hf_ds_config={
                "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": 1,
                "zero_optimization": {"stage": int(mode[-1])},
                "zero_force_ds_cpu_optimizer": False,
                "zero_allow_untested_optimizer": True,
            }
        )
    else:
        how["cpu"] = True
    return SLAAccelerator(
        contract=Contract.level("L2").override(**options["clauses"]),
        skip_bad_batches=options["skip"],
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=options["seedable"]),
        project_config=ProjectConfiguration(
            project_dir="project",
            automatic_checkpoint_naming=options["naming"],
            total_limit=options["total_limit"],
        ),
        **how,
    )


class Training:
    """The loop."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        set_seed(options["seed"])
        self.accelerator = accelerator_for(options)
        model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
        loader = DataLoader(Noisy(), batch_size=2, shuffle=True)
        self.model, self.optimizer, self.loader, self.schedule = self.accelerator.prepare(
            model, optimizer, loader, self.schedule
        )
        self.log: dict[str, Any] = {"batches": [], "loaded": None, "states": {}}
        self.num_batches = 0
        self.is_spoilt = False
        self.last_step = -1
        self.poisoned: list[int] | None = None

    def run(self) -> None:
        """Trains from where it is."""
        accelerator = self.accelerator
        if self.options["load"]:
            path = accelerator.load_state(self.options["load"])
            self.log["loaded"] = None if path is None else path.name
            self.log["states"]["loaded"] = self.state()
        ours = accelerator.sla_epochs(self.options["num_epochs"])
        epochs = ours if self.options["epochs_of_ours"] else range(self.options["num_epochs"])
        for epoch in epochs:
            for batch in self.loader:
                self.step(epoch, *batch)
                if self.num_batches == self.options["stop_after"]:
                    return

    def step(self, epoch: int, indices: Tensor, inputs: Tensor) -> None:
        """One batch."""
        self.num_batches += 1
        if self.accelerator.sla_last_step < self.last_step:
            self.log["states"]["back"] = self.state()
            self.is_spoilt = False
        output = self.model(inputs)
        loss = (output - inputs.sum(1, keepdim=True)).square().mean()
        if self.num_batches - 1 == self.options["poison"]:
            self.poisoned = indices.tolist()
        if self.num_batches in self.options["nan_batches"] or indices.tolist() == self.poisoned:
            self.is_spoilt = True
            if not self.options["mode"].startswith("zero"):
                loss = loss * float("nan")
        if self.is_spoilt:
            # The epoch must not be over before the monitor has had its look.
            time.sleep(0.05)
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        noise = draws()
        self.last_step = step = self.accelerator.sla_last_step
        is_due = self.num_batches in self.options["nan_batches"]
        if is_due and self.options["mode"].startswith("zero"):
            # DeepSpeed leaves a bad update out by itself, and there is nothing to go back from.
            watch = _runs.current()
            assert watch is not None
            watch.session.ask_to_roll_back("The test wants it.", step=step)
        self.log["batches"].append(
            [
                step,
                epoch,
                indices.tolist(),
                inputs.tolist(),
                noise,
                loss.item(),
                self.schedule.get_last_lr()[0],
            ]
        )
        if step in self.options["save_at"]:
            path = None if self.options["naming"] else f"saved-{step}"
            self.accelerator.save_state(path, safe_serialization=self.options["safe"])
            self.log["states"][str(step)] = self.state()

    def state(self) -> str:
        """A digest of this rank's parameters, moments and learning rate."""
        found = hashlib.sha256()
        parts: list[Any] = [getattr(p, "ds_tensor", p) for p in self.model.parameters()]
        inner = self.optimizer.optimizer
        # ZeRO has its own optimizer around torch's.
        inner = getattr(inner, "optimizer", inner)
        parts += [part for group in inner.param_groups for part in group["params"]]
        parts += tensors_in(list(inner.state.values()))
        for part in parts:
            local = part.to_local() if hasattr(part, "to_local") else part
            found.update(local.detach().cpu().float().numpy().tobytes())
        found.update(repr(self.schedule.get_last_lr()).encode())
        return found.hexdigest()


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in nested containers."""
    if isinstance(value, Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    return [t for one in inner for t in tensors_in(one)] if isinstance(value, dict | list) else []


def flip_a_bit(path: Path) -> None:
    """Damages a file without changing its length."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def main() -> None:
    """Trains several times, and tells what came of it."""
    for given in json.loads(sys.argv[1]):
        options = DEFAULTS | given
        training = Training(options)
        if options["damage"] and RANK == 0:
            flip_a_bit(Path(options["damage"]))
        training.run()
        training.log["end"] = training.state()
        log = Path(f"log-{options['name']}-{RANK}.json")
        log.write_text(json.dumps(training.log))
        _runs.end(None)
        for state in (AcceleratorState, PartialState, GradientState):
            state._shared_state.clear()


if __name__ == "__main__":
    main()
