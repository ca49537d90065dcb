"""What Lightning is about to save, as the facts that a checkpoint is proved by."""

from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy
from torch import Tensor

from sla_lightning import _compat
from slav1.checkpoint import SaveFacts
from slav1.checkpoint.fingerprints import name_non_finite, name_tensors

HOST = "lightning"
"""Name of the host in manifests."""


def facts_of(trainer: Trainer, checkpoint: Mapping[str, Any], *, is_healthy: bool) -> SaveFacts:
    """Describes a save, as seen by this rank.

    Args:
        trainer: The trainer that saves.
        checkpoint: What it hands to its strategy; the strategy may take parts out of it.
        is_healthy: Whether no breach is open.
    """
    strategy = trainer.strategy
    is_sharded = _compat.is_sharded(trainer)
    replicas = _replicas(trainer)
    tensors: dict[str, Tensor] = {}
    if isinstance(strategy, DeepSpeedStrategy):
        # It writes its own tensors under names of its own.
        is_healthy = is_healthy and name_non_finite(_partitions(trainer)) is None
    elif is_sharded:
        tensors = _shards(trainer, checkpoint)
    elif trainer.is_global_zero:
        tensors = name_tensors(checkpoint)
    # Weights alone are a checkpoint, but none to go on from.
    is_complete = "optimizer_states" in checkpoint
    return SaveFacts(
        step=max(0, trainer.global_step - 1),
        host=HOST,
        kind="sharded" if is_sharded else "replicated",
        position={
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "num_batches": trainer.fit_loop.total_batch_idx + 1,
            "is_complete": is_complete,
        },
        tensors=tensors,
        replicas=replicas,
        is_healthy=is_healthy and is_complete,
    )


def _replicas(trainer: Trainer) -> dict[str, Tensor]:
    """What data parallel ranks hold in common."""
    strategy = trainer.strategy
    is_split = isinstance(strategy, DeepSpeedStrategy) and strategy.zero_stage_3
    if not isinstance(strategy, DDPStrategy) or is_split:
        return {}
    return {name: each.detach() for name, each in trainer.lightning_module.named_parameters()}


def _partitions(trainer: Trainer) -> dict[str, Tensor]:
    """What this rank holds of parameters that DeepSpeed has split."""
    named = trainer.lightning_module.named_parameters()
    return {name: getattr(each, "ds_tensor", each).detach() for name, each in named}


def _shards(trainer: Trainer, checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """This rank's parts, by the names that torch's distributed checkpoint gives them."""
    model = "model" if isinstance(trainer.strategy, FSDPStrategy) else "state_dict"
    state = {model: checkpoint["state_dict"]} | {
        f"optimizer_{number}": each
        for number, each in enumerate(checkpoint.get("optimizer_states", []))
    }
    return dict(_local_parts(name_tensors(state)))


def _local_parts(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors.items():
        local: Any = tensor
        if hasattr(local, "local_shards"):
            shards = local.local_shards()
            local = shards[0].tensor if len(shards) == 1 else None
        elif hasattr(local, "to_local"):
            local = local.to_local()
        # Of a tensor with fewer rows than ranks, some ranks hold nothing.
        if local is not None and local.numel():
            yield name, local.detach()
