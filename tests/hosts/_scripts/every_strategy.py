"""One small training under contract in any host and any strategy, on processors or on GPUs.

Takes a host, a strategy, how many steps each rank makes, and clauses of a contract as JSON if
they are not the usual ones; what goes wrong stands in ``SLA_INJECT``, and in ``BAD_LOSSES`` the
steps whose loss is no number though its gradient is sound. At the end each rank tells what it made,
with which weights it began, what it drew at random, which learning rates its updates used, and what
weights it holds then.
"""

import hashlib
import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import families
import lightning.pytorch as pl
import torch
import toys
from torch import Tensor, nn
from torch.utils.data import DataLoader

from slav1.contract import Contract

SAVE_EVERY, STEP_S = 5, 0.03
HAS_GPUS = torch.cuda.is_available()
RATE = 0.01
CLAUSES: dict[str, Any] = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
BAD_LOSSES = json.loads(os.environ.get("BAD_LOSSES", "[]"))


def contract() -> Contract:
    """Short limits, and looks that come often."""
    usual: dict[str, Any] = {
        "checkpoint": {"every_steps": SAVE_EVERY},
        "replica_divergence": {"every_steps": SAVE_EVERY},
        "gradients": {"zero_share_every": 1, "norm_every": 1},
    }
    return toys.contract(limit_s=3.0, **usual | CLAUSES)


class Seen:
    """What this rank's steps were made with."""

    def __init__(self) -> None:
        self.made = ""
        """Digest of the weights that training began with, as this rank made them."""
        self.noise: list[float] = []
        """A number drawn in each step."""
        self.rates: dict[int, float] = {}
        """Learning rate that the update of each step used."""

    def loss(self, loss: Tensor) -> Tensor:
        """The loss of the next step."""
        self.noise.append(torch.rand(()).item())
        # A constant, so the gradient is what it would have been.
        return loss + float("nan") if len(self.noise) - 1 in BAD_LOSSES else loss


SEEN = Seen()


class AdamW(torch.optim.AdamW):
    """Notes the rate that each update uses."""

    def _init_group(self, group: Any, *rest: Any) -> Any:
        SEEN.rates[len(SEEN.noise) - 1] = float(group["lr"])
        return super()._init_group(group, *rest)


def seed() -> None:
    """As a script does; where the contract is to see to it, as one that seeds each rank otherwise
    and has drawn some numbers."""
    torch.manual_seed(int(os.environ["RANK"]) if "seeds" in CLAUSES else 0)
    torch.rand(1 + int(os.environ["RANK"]))


def network() -> nn.Module:
    """Two layers with dropout between them."""
    made = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    SEEN.made = digest_of(list(made.parameters()))
    return made


def loss_of(model: Any, batch: Tensor) -> Tensor:
    """Slow enough for the monitor to have its say."""
    time.sleep(STEP_S)
    inputs = (batch / 100).to(next(model.parameters()).dtype)
    return SEEN.loss(model(inputs).square().mean())


def loader(num_steps: int) -> DataLoader[Tensor]:
    """Batches of two, so many for each of two ranks."""
    return DataLoader(families.Numbers(2 * 2 * num_steps), batch_size=2, shuffle=True)


def whole(parameter: Any) -> Tensor:
    """Collective. All of a parameter, whoever holds its parts."""
    if hasattr(parameter, "full_tensor"):
        return parameter.full_tensor().detach()
    if hasattr(parameter, "ds_tensor"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()
    return parameter.detach()


def digest_of(parameters: list[Any]) -> str:
    """Collective where they are parts. What parameters come to."""
    flat = torch.cat([whole(one).cpu().float().flatten() for one in parameters])
    return hashlib.sha256(flat.detach().numpy().tobytes()).hexdigest()


def weights_of(model: nn.Module) -> dict[str, Any]:
    """Collective. What all weights come to on this rank."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    gathered = FullyShardedDataParallel.summon_full_params(model, writeback=False)
    # On processors the first generation of FSDP can't gather: each rank tells of its parts.
    with gathered if HAS_GPUS else nullcontext():
        weights = [whole(one).cpu().float().flatten() for one in model.parameters()]
    flat = torch.cat(weights)
    digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()
    return {"num": flat.numel(), "is_finite": bool(flat.isfinite().all()), "digest": digest}


def with_accelerate(strategy: str, num_steps: int) -> dict[str, Any]:
    """A hand-written loop."""
    from accelerate_families import settings_for

    from sla_accelerate import SLAAccelerator

    kind, _, clips = strategy.partition("+")
    settings = settings_for(kind)
    seed()
    accelerator = SLAAccelerator(contract=contract(), on_stop="flag", **settings)
    model = network()
    optimizer = AdamW(model.parameters(), lr=RATE)
    model, optimizer, data = accelerator.prepare(model, optimizer, loader(num_steps))
    accelerator.load_state("last_good")
    starts_at = accelerator.sla_last_step + 1
    for _ in accelerator.sla_epochs(1):
        for batch in data:
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            if clips:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if (accelerator.sla_last_step + 1) % SAVE_EVERY == 0:
                accelerator.save_state(f"checkpoints/step-{accelerator.sla_last_step}")
            if accelerator.sla_should_stop:
                break
    weights = weights_of(model)
    step, folder = accelerator.sla_last_step, accelerator.sla_run_folder
    stopped_at = accelerator.sla_stopped_at
    accelerator.end_training()
    return {
        "wrapped": type(model).__name__,
        "sharding": str(accelerator.distributed_type),
        "starts_at": starts_at,
        "last_step": step,
        "stopped_at": stopped_at,
        "folder": str(folder),
        "weights": weights,
    }


class Module(families.Family):
    """The same model, made when the trainer asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = None

    def configure_model(self) -> None:
        if self.network is None:
            self.network = network()
        super().configure_model()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return loss_of(self.network, batch)

    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), lr=RATE)


class Looks(pl.Callback):
    """Notes where training begins, and what weights it ends with."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.weights: Any = None

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.starts.append(trainer.global_step)

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.weights = weights_of(trainer.strategy.model)


def with_lightning(strategy: str, num_steps: int) -> dict[str, Any]:
    """A trainer."""
    seed()
    watch, looks = toys.SLACallback(contract()), Looks()
    trainer = toys.trainer(
        watch,
        looks,
        accelerator="gpu" if HAS_GPUS else "cpu",
        devices=2,
        strategy=families.on_gpus(strategy) if HAS_GPUS else families.strategy(strategy),
        max_epochs=1,
    )
    trainer.fit(Module(), loader(num_steps))
    return {
        "wrapped": type(trainer.strategy).__name__,
        "starts_at": looks.starts[0],
        "last_step": trainer.global_step - 1,
        "stopped_at": watch.stopped_at,
        "folder": str(watch.run_folder),
        "weights": looks.weights,
    }


def with_transformers(strategy: str, num_steps: int) -> dict[str, Any]:
    """A ``transformers.Trainer``."""
    from trainers import Words, model
    from transformers import Trainer
    from transformers_families import noting, settings_for, spread

    from sla_accelerate import SLATrainerCallback

    class Slow(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            time.sleep(STEP_S)
            inputs.pop("index")
            return SEEN.loss(super().compute_loss(model, inputs, *args, **kwargs))

    how = {"max_steps": num_steps, "save_steps": SAVE_EVERY, "lr_scheduler_type": "constant"}
    arguments = settings_for(strategy, Path("trained"), **how)
    watch = SLATrainerCallback(contract())
    data = Words(2 * 4 * num_steps)
    made = model()
    SEEN.made = digest_of(list(made.parameters()))
    own = {"optimizer_cls_and_kwargs": (AdamW, {"lr": RATE}), "callbacks": [watch]}
    with spread(strategy):
        trainer = Slow(model=made, args=arguments, train_dataset=data, **own)
    starts: list[int] = []
    trainer.add_callback(noting(starts))
    trainer.train(resume_from_checkpoint="last_good")
    return {
        "wrapped": type(trainer.model_wrapped).__name__,
        "sharding": str(trainer.accelerator.distributed_type),
        "starts_at": starts[0],
        "last_step": trainer.state.global_step - 1,
        "stopped_at": watch.stopped_at,
        "folder": str(watch.run_folder),
        "weights": weights_of(trainer.model_wrapped),
    }


def damage() -> None:
    """Flips a bit of the newest checkpoint below a folder, if that is asked for, before the second
    start; both starts work there."""
    root, start = os.environ.get("DAMAGE"), os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if root is None:
        return
    os.chdir(root)
    if (os.environ["RANK"], start) != ("0", "1"):
        return
    (newest,) = (*Path(root).glob("**/step-9"), *Path(root).glob("**/checkpoint-10"))
    members = [path for path in newest.rglob("*") if path.is_file()]
    largest = max(members or [newest], key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def main() -> None:
    """Trains, and tells what came of it."""
    damage()
    host, strategy, num_steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    hosts = {
        "accelerate": with_accelerate,
        "lightning": with_lightning,
        "transformers": with_transformers,
    }
    train = hosts[host]
    said = train(strategy, num_steps)
    rates = [SEEN.rates.get(step) for step in range(len(SEEN.noise))]
    toys.tell("ended", **said, made=SEEN.made, noise=SEEN.noise, rates=rates)
    Path("ended").touch()


if __name__ == "__main__":
    main()
