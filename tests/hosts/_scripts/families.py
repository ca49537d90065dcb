"""Lightning's strategies on processors, as far as small changes get them there.

Lightning refuses FSDP and DeepSpeed without a GPU; what is changed here concerns only that.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.data import DataLoader, Dataset

from sla_lightning.strategies import (
    SLADDPStrategy,
    SLADeepSpeedStrategy,
    SLAFSDPStrategy,
    SLAModelParallelStrategy,
)

NUM_BATCHES = 8
"""Batches an epoch has, on each rank."""


class ProcessorFSDP(SLAFSDPStrategy):
    """Wraps the model before the host does, which would ask for a GPU."""

    def _setup_model(self, model: nn.Module) -> nn.Module:
        if not any(isinstance(part, FullyShardedDataParallel) for part in model.modules()):
            model = FullyShardedDataParallel(
                model,
                mixed_precision=self.mixed_precision_config,
                device_id=self.root_device,
                sharding_strategy=self.sharding_strategy,
                **self.kwargs,
            )
        return super()._setup_model(model)


class ProcessorDeepSpeed(SLADeepSpeedStrategy):
    """Does without the checks for CUDA."""

    def setup_environment(self) -> None:
        from sla_lightning.strategies import _bring_callback

        _bring_callback(self)
        DDPStrategy.setup_environment(self)

    def setup_distributed(self) -> None:
        reset_seed()
        self.set_world_ranks()
        self._init_deepspeed_distributed()

    def _setup_model_and_optimizer(
        self, model: Any, optimizer: Any, lr_scheduler: Any = None
    ) -> Any:
        import deepspeed

        engine, optimizer, _, _ = deepspeed.initialize(
            args=argparse.Namespace(device_rank=self.local_rank),
            config=self.config,
            model=model,
            model_parameters=[each for each in model.parameters() if each.requires_grad],
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            dist_init_required=False,
        )
        return engine, optimizer


def strategy(name: str) -> Any:
    """A strategy of ours that runs on processors."""
    if name == "ddp":
        return SLADDPStrategy()
    if name == "plain_ddp":
        return "ddp"
    if name == "fsdp2":
        return SLAModelParallelStrategy()
    if name == "fsdp2_full":
        return SLAModelParallelStrategy(save_distributed_checkpoint=False)
    if name.startswith("fsdp_"):
        kind = name.removeprefix("fsdp_")
        if kind == "full":
            _keep_full_states_in_place()
        return ProcessorFSDP(state_dict_type=kind)
    return _deepspeed(int(name.removeprefix("deepspeed_")))


def on_gpus(name: str) -> Any:
    """The same strategies as they are."""
    if name == "fsdp_sharded":
        return SLAFSDPStrategy(state_dict_type="sharded")
    if name.startswith("deepspeed_"):
        return SLADeepSpeedStrategy(stage=int(name.removeprefix("deepspeed_")))
    return {"ddp": SLADDPStrategy, "fsdp2": SLAModelParallelStrategy}[name]()


def _deepspeed(stage: int) -> SLADeepSpeedStrategy:
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path.cwd() / "extensions"))
    import deepspeed.ops

    # Else the first start compiles for a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return ProcessorDeepSpeed(stage=stage)


def _keep_full_states_in_place() -> None:
    """On processors, moving a state to the processor frees the memory that it lies in."""
    from lightning.pytorch.strategies import fsdp
    from torch.distributed.fsdp import (
        FullOptimStateDictConfig,
        FullStateDictConfig,
        StateDictType,
    )

    def context(module: nn.Module, world_size: int, rank0_only: bool = True) -> Any:
        kept = {"offload_to_cpu": False, "rank0_only": rank0_only}
        return FullyShardedDataParallel.state_dict_type(
            module,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(**kept),
            FullOptimStateDictConfig(**kept),
        )

    fsdp._get_full_state_dict_context = context


class Numbers(Dataset[Tensor]):
    """Its own index and some noise, drawn anew each time."""

    def __init__(self, num: int) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> Tensor:
        return torch.cat([torch.tensor([float(index)]), torch.rand(3)])


class Family(pl.LightningModule):
    """A small model with dropout that says what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.seen: list[Any] = []

    def configure_model(self) -> None:
        mesh = getattr(self, "_device_mesh", None)
        if mesh is not None and not hasattr(self.network, "_is_sharded"):
            fully_shard(self.network, mesh=mesh["data_parallel"])
            self.network._is_sharded = True

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.network(batch / NUM_BATCHES).pow(2).mean()
        self.seen.append((self.global_step, batch_idx, batch.tolist(), loss.item()))
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def loader(num_ranks: int, num_workers: int = 0) -> DataLoader[Tensor]:
    """Shuffled batches of two, ``NUM_BATCHES`` for each rank."""
    return DataLoader(
        Numbers(2 * NUM_BATCHES * num_ranks), batch_size=2, shuffle=True, num_workers=num_workers
    )


def local_state(trainer: pl.Trainer) -> list[Tensor]:
    """What this rank holds of parameters and optimizer."""
    tensors: list[Any] = []
    for optimizer in (getattr(each, "optimizer", each) for each in trainer.optimizers):
        for group in optimizer.param_groups:
            for part in group["params"]:
                state = optimizer.state.get(part, {})
                tensors += [part, *(state[name] for name in sorted(state))]
    plain = [each for each in tensors if isinstance(each, Tensor)]
    return [getattr(each, "_local_tensor", each).detach().clone() for each in plain]
