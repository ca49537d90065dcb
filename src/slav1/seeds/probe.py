"""The determinism probe: one step twice from the same state, and whether the bits are the same."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from slav1.checkpoint.fingerprints import fingerprint, name_tensors
from slav1.seeds.generators import digests, put_back, take


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What two runs of one step came to."""

    differing: tuple[str, ...]
    """Names of what differs: ``loss`` or whatever the step returned, parameters, buffers,
    gradients, the optimizer's state, generators; none if all bits are the same."""

    @property
    def is_deterministic(self) -> bool:
        """Whether all bits are the same."""
        return not self.differing


def probe_step(
    step: Callable[[], Any], modules: Sequence[nn.Module], optimizers: Sequence[Optimizer] = ()
) -> Probed:
    """Collective if the step is. Makes one step twice from the same state and compares bits.

    All that the step may touch of modules, optimizers and generators is put back as it was,
    gradients included; anything else that it changes, as a scaler or a counter of its own, is
    not, and may make the second run another one.

    Args:
        step: Makes one step: forward, backward and, if wanted, the update; returns the loss,
            or tensors in any nesting. The batch must be the same in both calls.
        modules: What it trains.
        optimizers: What updates them.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> probe_step(lambda: model(torch.ones(1, 2)).sum(), [model]).is_deterministic
        True
    """
    with _kept(modules, optimizers) as rewind:
        first = _made(step, modules, optimizers)
        rewind()
        second = _made(step, modules, optimizers)
    names = sorted(first.keys() | second.keys())
    return Probed(differing=tuple(n for n in names if first.get(n) != second.get(n)))


def _made(
    step: Callable[[], Any], modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]
) -> dict[str, str]:
    """Makes the step; a digest of everything that came of it."""
    returned = step()
    # A single tensor has no path of its own.
    found = {name or "loss": fingerprint(t) for name, t in name_tensors(returned).items()}
    if isinstance(returned, float):
        found["loss"] = returned.hex()
    for number, module in enumerate(modules):
        for name, tensor in _held(module):
            found[f"module {number}: {name}"] = fingerprint(tensor)
    for number, optimizer in enumerate(optimizers):
        tensors = name_tensors(optimizer.state_dict()["state"])
        found |= {f"optimizer {number}: {name}": fingerprint(t) for name, t in tensors.items()}
    return found | {f"generator {name}": digest for name, digest in digests(take()).items()}


def _held(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in module.named_parameters():
        yield name, parameter
        if parameter.grad is not None:
            yield f"{name}.grad", parameter.grad
    yield from module.named_buffers()


@contextmanager
def _kept(
    modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]
) -> Iterator[Callable[[], None]]:
    """Remembers the state; gives what goes back to it, and goes back in the end."""
    generators = take()
    parameters = [parameter for module in modules for parameter in module.parameters()]
    gradients = [None if p.grad is None else p.grad.detach().clone() for p in parameters]
    tensors: list[Tensor] = [*parameters, *(b for module in modules for b in module.buffers())]
    values = [tensor.detach().clone() for tensor in tensors]
    states = [copy.deepcopy(optimizer.state_dict()) for optimizer in optimizers]

    def rewind() -> None:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.load_state_dict(copy.deepcopy(state))
        put_back(generators)

    try:
        yield rewind
    finally:
        rewind()
