"""Calls of modules in a forward: written down, and made again.

Imports torch, so nothing that the monitor imports may import this module.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from slav1.replicas._kept import Kept
from slav1.replicas._marks import Mark, mark
from slav1.replicas._nested import mapped, tensors

MAX_CALLS = 256
"""Calls of one forward that are written down; a forward of more is not replayed."""

Guarded: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
"""Wraps a hook, so that nothing it raises gets into a training."""


class Call:
    """One call of a module by whoever is no module: what it took, and what came of it."""

    def __init__(self, name: str, number: int, module: nn.Module, given: dict[Any, Any]) -> None:
        """Begins with what the call is given, which is copied.

        Args:
            name: Name of the module.
            number: Which call of it this is in its forward, from 1.
            module: What is called.
            given: Its arguments, by place or name.
        """
        self.module_name = name
        self.name = f"{name} (call {number})" if number > 1 else name
        self.module = module
        self._given = mapped(given, lambda _, tensor: _copied(tensor))
        self._kept = Kept.of(module)
        kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        self._casts = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in kinds
        ]
        self.gradients: dict[str, Tensor] = {}
        """Gradient of each output, as the backward came by with it."""

    def again(self, stack: contextlib.ExitStack) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Makes the call again, from the same generators, buffers and attributes.

        Args:
            stack: Puts back what was there when it is closed.

        Returns:
            Those inputs and outputs that are differentiated, by name.
        """
        inputs: dict[str, Tensor] = {}

        def fresh(place: str, tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                return tensor.clone()
            leaf = inputs[input_of(self.name, place)] = tensor.detach().requires_grad_()
            # A module may change what it is given, but no leaf.
            return leaf.clone()

        stack.enter_context(self._kept.restored(self.module))
        with torch.enable_grad(), contextlib.ExitStack() as casts:
            for kind, dtype, is_enabled in self._casts:
                casts.enter_context(torch.autocast(kind, dtype=dtype, enabled=is_enabled))
            given = mapped(self._given, fresh)
            args = [value for key, value in given.items() if isinstance(key, int)]
            kwargs = {key: value for key, value in given.items() if not isinstance(key, int)}
            return inputs, self.outputs(self.module(*args, **kwargs))

    def outputs(self, returned: Any) -> dict[str, Tensor]:
        """What of a call's result is differentiated, by name."""
        return {
            f"output{place} of {self.name}": tensor
            for place, tensor in tensors(returned)
            if tensor.requires_grad
        }


class CallRecord:
    """Writes down the outermost calls of modules in one forward, and their backward."""

    def __init__(self, guarded: Guarded) -> None:
        """Starts with nothing watched.

        Args:
            guarded: Wraps the hooks.
        """
        self._guarded = guarded
        self.calls: list[Call] = []
        self.marks: dict[str, Mark] = {}
        """Outputs, gradients of inputs and of parameters, in the order in which they came."""
        self._module_hooks: list[Any] = []
        self._tensor_hooks: list[Any] = []
        self._inside: Call | None = None
        self._depth = 0

    def watch(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        """Hooks modules, by name; of calls inside of each other the outermost counts."""
        after = self._guarded(self._after)
        for name, module in modules:
            before = self._guarded(self._before(name or type(module).__name__))
            self._module_hooks += [
                module.register_forward_pre_hook(before, with_kwargs=True),
                module.register_forward_hook(after, with_kwargs=True, always_call=True),
            ]

    def begin_backward(self, name_of: Callable[[nn.Parameter], str | None]) -> None:
        """The forward is over: what is called in the backward belongs to it.

        Args:
            name_of: Name of a parameter; None for one that is not compared.
        """
        self._remove_from_modules()
        for parameter in self.parameters():
            name = name_of(parameter)
            if name is not None:
                self._hook(name, parameter)

    def remove(self) -> None:
        """Takes all hooks away."""
        self._remove_from_modules()
        for hook in self._tensor_hooks:
            hook.remove()
        self._tensor_hooks = []

    def parameters(self) -> list[nn.Parameter]:
        """What is trained in the modules that were called, each once."""
        found = {id(p): p for call in self.calls for p in call.module.parameters()}
        return [parameter for parameter in found.values() if parameter.requires_grad]

    def _remove_from_modules(self) -> None:
        for hook in self._module_hooks:
            hook.remove()
        self._module_hooks, self._inside, self._depth = [], None, 0

    def _before(self, name: str) -> Callable[..., None]:
        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._inside is not None:
                self._depth += module is self._inside.module
                return
            if not torch.is_grad_enabled():
                return
            if len(self.calls) >= MAX_CALLS:
                raise RuntimeError(f"code outside of modules calls more than {MAX_CALLS} of them")
            number = 1 + sum(call.module is module for call in self.calls)
            given = dict(enumerate(args)) | kwargs
            call = Call(name, number, module, given)
            self._inside, self._depth = call, 1
            for place, tensor in tensors(given):
                if tensor.requires_grad:
                    self._hook(input_of(call.name, place), tensor)

        return before

    def _after(self, module: nn.Module, args: Any, kwargs: Any, returned: Any) -> None:
        call = self._inside
        if call is None or module is not call.module:
            return
        self._depth -= 1
        if self._depth:
            return
        self._inside = None
        outputs = call.outputs(returned)
        if outputs:
            self.calls.append(call)
        for name, tensor in outputs.items():
            self.marks[name] = mark(tensor)
            self._tensor_hooks.append(_on_gradient(tensor, _keeping(call.gradients, name)))

    def _hook(self, name: str, tensor: Tensor) -> None:
        def note(gradient: Tensor) -> None:
            # What comes later in this backward may change the gradient in place.
            self.marks[name] = mark(gradient)

        self._tensor_hooks.append(_on_gradient(tensor, self._guarded(note)))


def run_again(calls: Sequence[Call], parameters: Mapping[str, nn.Parameter]) -> dict[str, Mark]:
    """Makes all calls of a forward again, and their backward, without touching ``.grad``.

    Args:
        calls: As they were made.
        parameters: Those to differentiate, by name.

    Returns:
        Marks by the names that :class:`CallRecord` has for them.
    """
    with contextlib.ExitStack() as stack:
        leaves: dict[str, Tensor] = dict(parameters)
        marks: dict[str, Mark] = {}
        ends: list[tuple[Tensor, Tensor]] = []
        for call in calls:
            inputs, outputs = call.again(stack)
            leaves |= inputs
            marks |= {name: mark(tensor) for name, tensor in outputs.items()}
            ends += [(t, call.gradients[n]) for n, t in outputs.items() if n in call.gradients]
        gradients = torch.autograd.grad(
            [tensor for tensor, _ in ends],
            list(leaves.values()),
            [gradient for _, gradient in ends],
            allow_unused=True,
        )
        for name, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:
                marks[name] = mark(gradient)
        return marks


def input_of(call: str, place: str) -> str:
    """Name of the gradient of an input."""
    return f"gradient of input{place} of {call}"


def _on_gradient(tensor: Any, then: Callable[[Tensor], None]) -> Any:
    return tensor.register_hook(then)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _keeping(kept: dict[str, Tensor], name: str) -> Callable[[Tensor], None]:
    def keep(gradient: Tensor) -> None:
        kept[name] = gradient.detach().clone()

    return keep
