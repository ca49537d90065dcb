"""Which tensors of a training other ranks hold as well, bit for bit, by design.

Imports torch, so nothing that the monitor imports may import this module.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

PARAMETER = "parameter"
"""Kind of a tensor that is a parameter; those of optimizers have the optimizer's word."""

_LOCAL_HOOKS = frozenset({"post_localSGD_hook", "noop_hook"})
_TORCH_HOOKS = "torch.distributed."
_OWN_STATE_OPTIMIZERS = frozenset({"ZeroRedundancyOptimizer"})
_LOCAL_OPTIMIZERS = frozenset({"PostLocalSGDOptimizer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A tensor of this rank of which other ranks hold a copy."""

    name: str
    """Name of the parameter it belongs to."""

    kind: str
    """``parameter``, or what the optimizer calls it, such as ``exp_avg``."""

    ranks: tuple[int, ...]
    """Global ranks that hold a copy, this one included, in order."""

    tensor: Tensor
    """What this rank holds; of a tensor that is spread over ranks its part."""

    is_trained: bool = True
    """Whether an optimizer updates it with a gradient that all ranks share. What else changes a
    parameter nobody knows: an average of weights may well be kept by one rank only."""


@dataclass(slots=True, kw_only=True)
class Found:
    """What of a training can be compared between ranks."""

    copies: list[Copy] = field(default_factory=list)
    """In the same order on all ranks that hold them."""

    is_certain: bool = True
    """Whether nothing is known by which healthy copies could come to differ."""

    left_out: list[str] = field(default_factory=list)
    """What is not compared and why, for people."""

    wrappers: list[Any] = field(default_factory=list)
    """DDP modules."""

    states: list[tuple[Any, tuple[int, int]]] = field(default_factory=list)
    """Optimizers, and where and how long their state was."""

    @property
    def is_apart(self) -> bool:
        """Whether ranks make steps of their own for now, as between the means of local SGD."""
        return any(not wrapper.require_backward_grad_sync for wrapper in self.wrappers)

    @property
    def is_joined(self) -> bool:
        """Whether ranks may run out of data one after another, as under torch's ``Join``:
        those that have make no more updates, and their optimizers fall behind."""
        configs = (getattr(wrapper, "_join_config", None) for wrapper in self.wrappers)
        return any(config is not None and config.enable for config in configs)

    @property
    def is_still_in_backward(self) -> bool:
        """Whether nothing of it changes while a backward runs, and it lies on a GPU: all of it
        is DDP's, and no update is made inside of the backward."""
        return (
            bool(self.wrappers)
            and all(copy.tensor.is_cuda for copy in self.copies)
            and not any(_updates_in_backward(wrapper) for wrapper in self.wrappers)
        )

    def is_current(self) -> bool:
        """Whether the optimizers still keep what they kept."""
        return all(_state_of(optimizer) == then for optimizer, then in self.states)


def find_copies(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Found:
    """Finds the parameters that are replicated, and what the optimizers keep for them.

    Buffers are left out: running statistics may differ in health. So are counters of steps
    and what an optimizer keeps for each rank on purpose.

    Args:
        models: As the training calls them, wrapped by DDP, FSDP or DeepSpeed.
        optimizers: Those that update them.
    """
    found = Found()
    optimizers = list(optimizers)
    updated = _updated(optimizers)
    homes: dict[int, _Home] = {}
    for number, model in enumerate(models):
        prefix = "" if number == 0 else f"{number}."
        # DeepSpeed's optimizers hold parameters of their own making.
        is_engine = hasattr(model, "zero_optimization_stage")
        for name, parameter, ranks in _replicated(model, found):
            if len(ranks) > 1 and id(parameter) not in homes:
                is_trained = parameter.requires_grad and (is_engine or id(parameter) in updated)
                home = homes[id(parameter)] = _Home(f"{prefix}{name}", ranks, is_trained)
                _add(found, home, PARAMETER, parameter)
    for optimizer in optimizers:
        _add_state(found, optimizer, homes)
        found.states.append((optimizer, _state_of(optimizer)))
    return found


def trained(named: Mapping[str, Tensor], optimizers: Iterable[Any]) -> dict[str, Tensor]:
    """Those of some parameters that an optimizer updates with gradients that all ranks share.

    What else there is in a model may differ between ranks in health: see :class:`Copy`.

    Args:
        named: Parameters of a model that is replicated, by name.
        optimizers: All that update it.
    """
    updated = _updated(optimizers)
    return {name: one for name, one in named.items() if one.requires_grad and id(one) in updated}


def _updated(optimizers: Iterable[Any]) -> frozenset[int]:
    return frozenset(id(one) for optimizer in optimizers for one in _parameters_of(optimizer))


def _updates_in_backward(wrapper: Any) -> bool:
    """Whether an update may be made as soon as a gradient is there."""
    has_hooks = bool(getattr(wrapper, "_comm_hooks", ()))
    return has_hooks or any(hasattr(p, "_in_backward_optimizers") for p in wrapper.parameters())


def _state_of(optimizer: Any) -> tuple[int, int]:
    state = getattr(optimizer, "state", {})
    return id(state), len(state)


class _Home(NamedTuple):
    """What a tensor that is compared belongs to."""

    name: str
    ranks: tuple[int, ...]
    is_trained: bool


def _parameters_of(optimizer: Any) -> Iterator[Any]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


def _add(found: Found, home: _Home, kind: str, tensor: Any) -> None:
    held = local(tensor)
    if not held.numel() or held.device.type == "meta":
        return
    if type(held.detach()) is not Tensor or held.layout is not torch.strided:
        told = f"tensors of kind {type(held).__name__}, which have no bits of their own"
        if told not in found.left_out:
            found.left_out.append(told)
        return
    found.copies.append(Copy(kind=kind, tensor=held, **home._asdict()))


def local(tensor: Any) -> Tensor:
    """What this rank holds of a tensor; no collective."""
    held: Tensor = getattr(tensor, "_local_tensor", tensor)
    return held


def _add_state(found: Found, optimizer: Any, homes: Mapping[int, _Home]) -> None:
    name = type(optimizer).__name__
    if name in _LOCAL_OPTIMIZERS:
        found.is_certain = False
        found.left_out.append(f"{name} lets ranks make steps of their own")
    if name in _OWN_STATE_OPTIMIZERS:
        found.left_out.append(f"each rank keeps a part of its own of the state of {name}")
        return
    state = getattr(optimizer, "state", {})
    for group in getattr(optimizer, "param_groups", ()):
        if _is_shared_out(optimizer, group["params"], homes):
            told = f"{name} keeps something for a part of its parameters only, perhaps another one"
            found.left_out += [] if told in found.left_out else [told]
            continue
        for parameter in group["params"]:
            home = homes.get(id(parameter))
            if home is not None and parameter in state:
                _add_kept(found, home, state[parameter])


def _add_kept(found: Found, home: _Home, kept: Mapping[Any, Any]) -> None:
    for kind, value in kept.items():
        if isinstance(value, Tensor) and value.dim() and "error" not in str(kind):
            _add(found, home, str(kind), value)


def _is_shared_out(optimizer: Any, parameters: Iterable[Any], homes: Mapping[int, _Home]) -> bool:
    """Whether each rank may update some of these parameters and send them to the others, as Muon
    and Shampoo do: then each keeps state for those alone. None of torch's own does."""
    if type(optimizer).__module__.startswith("torch.optim"):
        return False
    state = getattr(optimizer, "state", {})
    with_state = {one in state for one in parameters if id(one) in homes and one.requires_grad}
    return len(with_state) > 1


def _replicated(
    model: nn.Module, found: Found
) -> Iterator[tuple[str, nn.Parameter, tuple[int, ...]]]:
    """Yields parameters with the ranks that hold a copy, in the order of the model."""
    if hasattr(model, "zero_optimization_stage"):
        yield from _of_deepspeed(model, found)
        return
    ranks_of = _ranks_by_wrapper(model, found)
    is_fsdp2 = any(_is_a(module, "FSDPModule") for module in model.modules())
    for name, parameter in model.named_parameters():
        ranks = ranks_of.get(id(parameter), ())
        if not ranks and is_fsdp2:
            ranks = _ranks_of_mesh(parameter)
        yield _plain(name), parameter, ranks


def _plain(name: str) -> str:
    """A parameter's name without what wrappers add to it."""
    wrappers = ("module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in wrappers:
        del parts[0]
    return ".".join(part for part in parts if part not in wrappers[1:])


def _ranks_by_wrapper(model: nn.Module, found: Found) -> dict[int, tuple[int, ...]]:
    ranks_of: dict[int, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            _judge_ddp(module, found)
            ranks = _members(module.process_group)
            ignored = set(getattr(module, "parameters_to_ignore", ()))
            for name, parameter in module.module.named_parameters():
                ranks_of[id(parameter)] = () if name in ignored else ranks
        elif _is_a(module, "FullyShardedDataParallel"):
            ranks = _ranks_of_fsdp(module)
            ignored_parameters = {id(one) for one in getattr(module, "_ignored_params", ())}
            for parameter in module.parameters():
                ranks_of[id(parameter)] = () if id(parameter) in ignored_parameters else ranks
    return {one: ranks for one, ranks in ranks_of.items() if ranks}


def _judge_ddp(module: Any, found: Found) -> None:
    found.wrappers.append(module)
    if not module.require_backward_grad_sync:
        found.is_certain = False
    for hook, _ in getattr(module, "_comm_hooks", ()):
        name, home = getattr(hook, "__name__", repr(hook)), getattr(hook, "__module__", "")
        if name in _LOCAL_HOOKS or not str(home).startswith(_TORCH_HOOKS):
            found.is_certain = False
            found.left_out.append(f"the hook {name} decides what gradients each rank gets")


def _ranks_of_fsdp(module: Any) -> tuple[int, ...]:
    """Ranks that hold the same part as this one."""
    strategy = module.sharding_strategy.name
    if strategy == "NO_SHARD":
        return _members(module.process_group)
    group = getattr(module, "_inter_node_pg", None)
    return () if group is None or "HYBRID" not in strategy else _members(group)


def _ranks_of_mesh(parameter: Any) -> tuple[int, ...]:
    """Ranks that hold the same part of a DTensor as this one, along FSDP2's first dimension.

    Only there gradients are reduced. Along a dimension of tensor parallelism each rank works
    out the gradient of a copy by itself, which need not give the same bits.
    """
    mesh = getattr(parameter, "device_mesh", None)
    place = None if mesh is None else mesh.get_coordinate()
    if mesh is None or place is None or mesh.ndim < 2:
        return ()
    if not parameter.placements[0].is_replicate():
        return ()
    return tuple(sorted(mesh.mesh[(slice(None), *place[1:])].tolist()))


def _of_deepspeed(engine: Any, found: Found) -> Iterator[tuple[str, nn.Parameter, tuple[int, ...]]]:
    stage = int(engine.zero_optimization_stage())
    if stage >= 3:
        found.left_out.append("ZeRO stage 3 keeps no copy of a parameter")
        return
    found.left_out.append("what DeepSpeed's optimizer keeps is spread over the ranks")
    ranks = _members(getattr(engine, "seq_data_parallel_group", engine.data_parallel_group))
    for name, parameter in engine.module.named_parameters():
        # Experts are copied along groups of their own.
        if getattr(parameter, "allreduce", True):
            yield _plain(name), parameter, ranks


def _is_a(module: nn.Module, name: str) -> bool:
    """Whether a module is of a class of that name, which then need not be imported."""
    return any(one.__name__ == name for one in type(module).__mro__)


def _members(group: Any) -> tuple[int, ...]:
    return tuple(sorted(dist.get_process_group_ranks(group)))
