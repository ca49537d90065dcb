"""What Lightning is about to save, as the facts that a checkpoint is proved by."""

from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy
from torch import Tensor

from sla_lightning import _compat
from slav1.checkpoint import SaveFacts
from slav1.checkpoint.fingerprints import name_non_finite, name_tensors
from slav1.replicas import trained

HOST = "lightning"
"""Name of the host in manifests."""


def facts_of(trainer: Trainer, checkpoint: Mapping[str, Any]) -> SaveFacts:
    """Describes a save, as seen by this rank.

    Args:
        trainer: The trainer that saves.
        checkpoint: What it hands to its strategy; the strategy may take parts out of it.
    """
    is_sharded = _compat.is_sharded(trainer)
    # Weights alone are a checkpoint, but none to go on from.
    is_complete = is_healthy = "optimizer_states" in checkpoint
    tensors: dict[str, Tensor] = {}
    if isinstance(trainer.strategy, DeepSpeedStrategy):
        # It writes its own tensors under names of its own.
        is_healthy = is_healthy and name_non_finite(_partitions(trainer)) is None
    elif is_sharded:
        tensors = _shards(trainer, checkpoint)
    elif trainer.is_global_zero:
        tensors = name_tensors(checkpoint)
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
        replicas=trained_of(trainer),
        may_be_infinite=_beside_health(trainer, tensors),
        is_healthy=is_healthy,
    )


def is_fit(facts: SaveFacts) -> bool:
    """Whether training could go on from what this rank has of a state. Reads all of it."""
    judged = {name: one for name, one in facts.tensors.items() if name not in facts.may_be_infinite}
    return facts.is_healthy and name_non_finite({**judged, **facts.replicas}) is None


def _weights_name(trainer: Trainer) -> str:
    """Under which name the files hold the module's state."""
    is_fsdp = isinstance(trainer.strategy, FSDPStrategy)
    return "model" if is_fsdp and _compat.is_sharded(trainer) else "state_dict"


def _beside_health(trainer: Trainer, tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Names of tensors that may hold infinities in the healthiest of runs: masks among the
    buffers, and what callbacks hold, as the best score before there is one."""
    weights = _weights_name(trainer)
    buffers = {
        f"{weights}.{name.replace('_fsdp_wrapped_module.', '')}"
        for name, _ in trainer.lightning_module.named_buffers()
    }
    judged = (f"{weights}.", "optimizer_")
    return frozenset(name for name in tensors if name in buffers or not name.startswith(judged))


def replicas_of(trainer: Trainer) -> dict[str, Tensor]:
    """Parameters that data parallel ranks begin alike, by name; nothing where they hold parts,
    nor of what DDP is told to leave alone."""
    return {name: each.detach() for name, each in _replicated(trainer).items()}


def trained_of(trainer: Trainer) -> dict[str, Tensor]:
    """Those of them that an optimizer updates, so that they stay alike, by name."""
    held = _replicated(trainer)
    if isinstance(trainer.strategy, DeepSpeedStrategy):
        # Its optimizers hold parameters of their own making.
        kept = {name: each for name, each in held.items() if each.requires_grad}
    else:
        kept = trained(held, trainer.optimizers)
    return {name: each.detach() for name, each in kept.items()}


def _replicated(trainer: Trainer) -> dict[str, Tensor]:
    strategy, module = trainer.strategy, trainer.lightning_module
    is_split = isinstance(strategy, DeepSpeedStrategy) and strategy.zero_stage_3
    if not isinstance(strategy, DDPStrategy) or is_split:
        return {}
    own = frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    return {name: each for name, each in module.named_parameters() if name not in own}


def _partitions(trainer: Trainer) -> dict[str, Tensor]:
    """What this rank holds of parameters that DeepSpeed has split."""
    named = trainer.lightning_module.named_parameters()
    return {name: getattr(each, "ds_tensor", each).detach() for name, each in named}


def _shards(trainer: Trainer, checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """This rank's parts, by the names that torch's distributed checkpoint gives them."""
    state = {_weights_name(trainer): checkpoint["state_dict"]} | {
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
