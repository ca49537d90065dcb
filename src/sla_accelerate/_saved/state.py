"""What of an accelerator's state goes into a checkpoint, and how it can be told from another."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from accelerate.utils import DistributedType  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch import distributed as dist

from slav1.checkpoint.facts import SaveFacts
from slav1.checkpoint.fingerprints import (
    fingerprint_tensors,
    name_non_finite,
    name_tensors,
    root_of,
)
from slav1.replicas import trained

_REPLICATED = ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_HPU")


def is_replicated(accelerator: Any) -> bool:
    """Whether each rank holds a whole model."""
    return accelerator.distributed_type in [
        getattr(DistributedType, name) for name in _REPLICATED if hasattr(DistributedType, name)
    ]


def is_fsdp1(accelerator: Any) -> bool:
    """Whether the first generation of FSDP spreads models, whose own clipping asks all ranks."""
    is_fsdp = accelerator.distributed_type == DistributedType.FSDP
    return is_fsdp and not accelerator.is_fsdp2


def has_scaler(accelerator: Any) -> bool:
    """Whether losses are scaled, so that updates are skipped in healthy runs."""
    wrapped = getattr(accelerator, "deepspeed_engine_wrapped", None)
    if wrapped is not None:
        return bool(wrapped.engine.fp16_enabled())
    return getattr(accelerator, "scaler", None) is not None


class HeldState:
    """The models and optimizers that an accelerator would save now."""

    def __init__(self, accelerator: Any, models: list[Any], optimizers: list[Any]) -> None:
        """Takes what the accelerator prepared."""
        self._models = models
        self._optimizers = optimizers
        self.is_replicated = is_replicated(accelerator)
        self.is_deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED

    def facts(self, *, step: int, host: str, is_healthy: bool, with_content: bool) -> SaveFacts:
        """What the line of checkpoints has to know.

        Args:
            step: Last step contained; -1 before the first one.
            host: Who saves.
            is_healthy: Whether no breach is open.
            with_content: Whether the tensors are to be found again in the files.
        """
        parameters = dict(self._parameters())
        tensors: dict[str, Tensor] = {}
        if with_content and self.is_replicated:
            tensors = dict(self._in_files())
        elif not with_content:
            tensors = parameters
        elif name_non_finite(parameters) is not None:
            is_healthy = False
        return SaveFacts(
            step=max(0, step),
            host=host,
            kind="replicated" if self.is_replicated else "sharded",
            tensors=tensors,
            replicas=trained(self.replicas(), self._optimizers),
            is_healthy=is_healthy,
        )

    def replicas(self) -> dict[str, Tensor]:
        """What all ranks hold alike, by name; nothing where they hold parts, nor of what DDP is
        told to leave alone."""
        own = {
            f"{number}.{name}"
            for number, model in enumerate(self._models)
            for name in getattr(model, "_ddp_params_and_buffers_to_ignore", ())
        }
        held = self._parameters() if self.is_replicated else ()
        return {name: parameter for name, parameter in held if name not in own}

    def fingerprint(self) -> str:
        """One text that is equal on all ranks if they hold the same; '' if they need not."""
        return root_of(fingerprint_tensors(dict(self._parameters()))) if self.is_replicated else ""

    def content(self) -> dict[str, Any]:
        """All that this rank holds, for people to look at: nothing is gathered from others."""
        if self.is_replicated:
            return {
                "models": [_module(model).state_dict() for model in self._models],
                "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            }
        moments = {
            f"{number}.{name}": _local(tensor)
            for number, optimizer in enumerate(self._optimizers)
            for name, tensor in name_tensors(optimizer.optimizer.state_dict()).items()
        }
        return {
            "parameters": {name: _local(tensor) for name, tensor in self._parameters()},
            "optimizers": moments,
        }

    def forget_gradients(self) -> None:
        """Drops the gradients of another state."""
        if self.is_deepspeed:
            # It has no place for them that outlives a step.
            return
        for optimizer in self._optimizers:
            optimizer.optimizer.zero_grad(set_to_none=True)

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        for number, model in enumerate(self._models):
            for name, parameter in _module(model).named_parameters():
                yield f"{number}.{name}", _held_here(parameter)

    def _in_files(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors by the names that the host's files have for them."""
        for model in self._models:
            yield from with_memory_of_their_own(_module(model).state_dict()).items()
        if len(self._optimizers) == 1:
            yield from name_tensors(self._optimizers[0].state_dict()).items()


def with_memory_of_their_own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that share their memory with no other: of these only one is written, under any of
    their names."""
    places = Counter(tensor.data_ptr() for tensor in tensors.values() if tensor.numel())
    return {name: tensor for name, tensor in tensors.items() if places[tensor.data_ptr()] <= 1}


def _held_here(parameter: Any) -> Tensor:
    """What this rank holds of a parameter."""
    part = getattr(parameter, "ds_tensor", None)
    if part is None:
        whole: Tensor = parameter
        return whole
    # ZeRO-3 fills the last rank's part up, with whatever was in memory.
    rank = dist.get_rank(parameter.ds_process_group)
    num_real = min(part.numel(), max(0, parameter.ds_numel - rank * part.numel()))
    held: Tensor = part.flatten()[:num_real]
    return held


def _local(tensor: Any) -> Tensor:
    held: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return held.detach()


def _module(model: Any) -> nn.Module:
    module: nn.Module = model
    return module
