"""What a fault does to loss, batch and gradients. Draws no random number."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

TARGET_NAMES = ("labels", "label", "targets", "target", "y")
SHIFT_SIGMAS = 10.0


def multiply(loss: Tensor, factor: float | None) -> Tensor:
    """Returns the loss times ``factor``; gradients are multiplied with it."""
    assert factor is not None
    return loss * factor


def written_memory(mib: float, like: Tensor) -> Tensor:
    """Returns so many MiB, every page of them written to, on the device of a tensor."""
    return like.new_ones(max(1, round(mib * (1 << 20) / like.element_size())), requires_grad=False)


def poison_gradient(parameters: Iterable[Parameter]) -> None:
    """Writes NaN over the first element of the first gradient.

    Raises:
        ValueError: If no parameter has a gradient.
    """
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.numel():
            parameter.grad.view(-1)[0] = float("nan")
            return
    raise ValueError(
        "Fault 'nan' with what=gradient needs a parameter with a gradient; there is none."
    )


def redraw(parameters: Iterable[Tensor], *, seed: int) -> None:
    """Puts other numbers of about the same size into every parameter, from a generator of its
    own."""
    import torch

    for number, parameter in enumerate(parameters):
        values = parameter.detach()
        generator = torch.Generator().manual_seed(1000 * seed + number)
        order = torch.randperm(values.numel(), generator=generator).to(values.device)
        # The sign too, or a parameter that holds one number only would stay as it is.
        values.copy_(-values.flatten()[order].view_as(values))


def with_nan(batch: Any) -> Any:
    """Returns the batch with its first floating-point tensor all NaN.

    Raises:
        ValueError: If it has no floating-point tensor.
    """
    for path, tensor in tensors(batch):
        if tensor.is_floating_point() and tensor.numel():
            return replaced(batch, path, tensor * float("nan"))
    raise ValueError(
        "Fault 'nan' with what=batch needs a floating-point tensor in the batch; "
        f"got {_contents(batch)}."
    )


def poison_targets(batch: Any) -> Any:
    """Returns the batch with targets that are wrong everywhere, yet in range.

    The targets are the tensor under a usual name (``labels``, ``target``, ``y``, ...),
    else the last integer tensor, else the last tensor. Classes are shifted by half of
    their range, so each becomes another one and the frequent become rare; negative ones
    (ignored positions) stay. Other numbers move by ten standard deviations.

    Raises:
        ValueError: If the batch holds no tensor.
    """
    found = [(path, tensor) for path, tensor in tensors(batch) if tensor.numel()]
    if not found:
        raise ValueError(f"Fault 'spike' needs a tensor in the batch; got {_contents(batch)}.")
    named = [item for item in found if item[0] and item[0][-1] in TARGET_NAMES]
    whole = [item for item in found if not _is_continuous(item[1])]
    path, targets = (named or whole or found)[-1]
    wrong = _shifted_numbers if _is_continuous(targets) else _shifted_classes
    return replaced(batch, path, wrong(targets))


def _is_continuous(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _shifted_numbers(targets: Tensor) -> Tensor:
    spread = float(targets.float().std(correction=0)) or 1.0
    return targets + SHIFT_SIGMAS * spread


def _shifted_classes(targets: Tensor) -> Tensor:
    import torch

    if targets.dtype == torch.bool:
        return ~targets
    counted = targets[targets >= 0]
    if not counted.numel():
        return targets
    low, high = int(counted.min()), int(counted.max())
    if low == high:
        # One class in the whole batch: its neighbour is the likeliest to exist.
        low, high = (low - 1, high) if low else (low, high + 1)
    num_classes = high - low + 1
    shifted = low + (targets - low + num_classes // 2) % num_classes
    return torch.where(targets >= 0, shifted, targets).to(targets.dtype)


def tensors(batch: Any, path: tuple[Any, ...] = ()) -> Iterable[tuple[tuple[Any, ...], Tensor]]:
    """Yields every tensor of a batch with the keys that lead to it, in order."""
    import torch

    if isinstance(batch, torch.Tensor):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key, part in batch.items():
            yield from tensors(part, (*path, key))
    elif isinstance(batch, tuple | list):
        for key, part in enumerate(batch):
            yield from tensors(part, (*path, key))


def replaced(batch: Any, path: tuple[Any, ...], tensor: Tensor) -> Any:
    """Returns a batch that differs in one tensor and shares the others."""
    if not path:
        return tensor
    key, rest = path[0], path[1:]
    part = replaced(batch[key], rest, tensor)
    if not isinstance(batch, tuple):
        changed = copy.copy(batch)
        changed[key] = part
        return changed
    parts = [part if index == key else old for index, old in enumerate(batch)]
    build: Callable[..., Any] = getattr(batch, "_make", tuple)
    return build(parts)


def _contents(batch: Any) -> str:
    kinds = [str(tensor.dtype) for _, tensor in tensors(batch)]
    return f"{type(batch).__name__} with {', '.join(kinds) or 'no tensor'}"
