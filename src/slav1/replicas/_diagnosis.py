"""What is to be known about calls that do not repeat themselves, or must not be repeated.

Imports torch, so nothing that the monitor imports may import this module.
"""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from slav1.replicas._calls import Call
from slav1.replicas._marks import Mark, mark, unequal_bits
from slav1.replicas._nested import tensors

_COLLECTIVES = ("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd")
_OPERATOR = re.compile(r"^(\S+) does not have a deterministic implementation")


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is the wrapper that ``torch.compile`` makes."""
    return hasattr(module, "_orig_mod")


def speaks_to_others(calls: Sequence[Call], again: Callable[[], Any]) -> bool:
    """Whether forward or backward of these calls hold a collective of torch.

    Of compiled modules it is not known: what they do can't be listened to.

    Args:
        calls: The calls.
        again: Makes them again, and their backward; all ranks do so.
    """
    if any(is_compiled(inner) for call in calls for inner in call.module.modules()):
        return False
    with _Listening() as listening:
        again()
    return bool(listening.has_heard)


def operators_at_fault(again: Callable[[], Any]) -> tuple[str, ...]:
    """Operators in these calls that torch knows not to repeat themselves."""
    with _deterministic(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again()
    found = [_OPERATOR.match(str(one.message)) for one in caught]
    return tuple(dict.fromkeys(match[1] for match in found if match))


def module_at_fault(calls: Sequence[Call]) -> str | None:
    """Name of the innermost module whose output differs first in two more forwards."""
    one, other = _marks_of_all(calls), _marks_of_all(calls)
    return next(iter(unequal_bits(one, other)), None)


def _marks_of_all(calls: Sequence[Call]) -> dict[str, Mark]:
    """Marks of what every module in these calls gives, in the order in which they do."""
    marks: dict[str, Mark] = {}

    def noting(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, returned: Any) -> None:
            for _, tensor in tensors(returned):
                if tensor.is_floating_point():
                    marks.setdefault(name, mark(tensor))

        return note

    for call in calls:
        with contextlib.ExitStack() as stack:
            for inner, module in call.module.named_modules():
                name = f"{call.name}.{inner}" if inner else call.name
                stack.callback(module.register_forward_hook(noting(name)).remove)
            call.again(stack)
    return marks


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Lets torch say which operators have no deterministic form."""
    before = torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=before, warn_only=was_warning)


class _Listening(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hears collectives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_heard = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.has_heard = self.has_heard or func.namespace in _COLLECTIVES
        return func(*args, **(kwargs or {}))
