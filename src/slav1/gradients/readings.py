"""What is read from gradients, and how they are set to zero, on the device they lie on."""

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

_HALVES = frozenset({torch.float16, torch.bfloat16})
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def norm_dtype(parameters: Sequence[Tensor]) -> torch.dtype | None:
    """In which type norms of their gradients are computed; None for their own, which is one
    and wide."""
    kinds = {parameter.dtype.to_real() for parameter in parameters}
    if torch.float64 in kinds and len(kinds) > 1:
        return torch.float64
    return torch.float32 if kinds & _HALVES else None


def total_norm(
    gradients: list[Tensor], dtype: torch.dtype | None, *, is_gathered: bool = False
) -> Tensor:
    """The L2 norm of all gradients together.

    Args:
        gradients: At least one; dense, floating point, on one device.
        dtype: See :func:`norm_dtype`: the range of half precision is easily left by a norm.
        is_gathered: Whether they are copied together first.

    Returns:
        Shape ``()``, on their device.
    """
    if is_gathered:
        whole: Tensor = torch.linalg.vector_norm(_gathered(gradients), dtype=dtype)
        return whole
    # torch's own clipping uses it too; there is no public function that takes a list.
    norms = torch._foreach_norm(gradients, 2.0, dtype)  # noqa: SLF001 - see above
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def zero_share(gradients: Sequence[Tensor], *, is_gathered: bool = False) -> Tensor:
    """Share of the elements that are exactly 0, from 0 to 1; shape ``()``, float32.

    Args:
        gradients: At least one; dense, on one device.
        is_gathered: Whether they are copied together first.
    """
    if is_gathered:
        # The copy is ours; counting takes longer.
        flags = _gathered(gradients).ne_(0)
        return 1.0 - flags.sum(dtype=torch.float32) / max(1, flags.numel())
    num_elements = sum(gradient.numel() for gradient in gradients)
    if gradients[0].device.type == "cpu":
        counts = [torch.count_nonzero(gradient) for gradient in gradients]
    else:
        # What is not 0 has a sign, and lists take a launch or two where each tensor takes three.
        signs = torch._foreach_sign(list(gradients))  # noqa: SLF001 - as for norms
        counts = list(torch._foreach_norm(signs, 1.0, norm_dtype(signs)))  # noqa: SLF001 - same
    return 1.0 - torch.stack(counts).sum().to(torch.float32) / max(1, num_elements)


def _gathered(gradients: Sequence[Tensor]) -> Tensor:
    """A copy of all, shape ``(elements,)``."""
    if len(gradients) == 1:
        # Of one alone the other way makes a view.
        return gradients[0].reshape(-1).clone()
    # As DDP fills its buckets; what is public does the same in a loop of Python's.
    flatten: Any = torch._utils._flatten_dense_tensors  # noqa: SLF001 - see above
    return cast("Tensor", flatten(gradients))


def part_of(gradient: Tensor, num_elements: int) -> Tensor:
    """At most so many elements from the middle of a gradient, without a copy; of one that does
    not lie in order rows of it, at least one."""
    if gradient.is_contiguous():
        flat = gradient.view(-1)
        start = max(0, (len(flat) - num_elements) // 2)
        return flat[start : start + num_elements]
    rows = max(1, num_elements * len(gradient) // gradient.numel())
    start = max(0, (len(gradient) - rows) // 2)
    return gradient[start : start + rows]


def flag_unless_all_finite(gradients: Sequence[Tensor]) -> Tensor:
    """1.0 if any element is not finite, else 0.0; shape ``()``, float32, where they lie.

    Args:
        gradients: At least one; dense, floating point, on one device.
    """
    flag = torch.zeros((), device=gradients[0].device)
    # What a gradient scaler uses: one launch for all. Multiplied with 1 they stay as they are.
    for alike in _by_dtype(gradients):
        torch._amp_foreach_non_finite_check_and_unscale_(alike, flag, _one(flag.device))
    return flag


def flag_unless_finite(norm: Tensor) -> Tensor:
    """1.0 if a norm is not finite, else 0.0; shape ``()``, float32, where the norm lies."""
    # Two launches, where asking whether it is finite takes six.
    return (norm - norm).ne_(0.0).to(torch.float32)


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


def _by_dtype(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for gradient in gradients:
        kinds.setdefault(gradient.dtype, []).append(gradient)
    return list(kinds.values())


def keep_or_zero(gradients: Sequence[Tensor], is_bad: Tensor) -> None:
    """Sets all gradients to 0 on their device if a flag there is set, without looking at it.

    Works on the bits, as integers: NaN times 0 would be NaN again.

    Args:
        gradients: Dense, floating point, on one device; changed in place.
        is_bad: Shape ``()``; 1.0 or 0.0. Where it lies on another device that one is waited for.
    """
    by_bits: dict[torch.dtype, list[Tensor]] = {}
    for gradient in gradients:
        bits = _BITS[gradient.dtype]
        by_bits.setdefault(bits, []).append(gradient.view(bits))
    for bits, views in by_bits.items():
        torch._foreach_mul_(views, (1 - is_bad).to(views[0].device, bits))


def can_be_zeroed(gradients: Sequence[Tensor]) -> bool:
    """Whether :func:`keep_or_zero` knows the types of all gradients."""
    return all(gradient.dtype in _BITS for gradient in gradients)
