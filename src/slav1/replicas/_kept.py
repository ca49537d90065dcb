"""What a forward begins with, to begin another one like it.

Imports torch, so nothing that the monitor imports may import this module.
"""

import contextlib
import random
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_OF_TORCH = frozenset(vars(nn.Module()))
_CONTAINERS = (list, dict, set, deque)


class Kept(NamedTuple):
    """Generators, buffers, and what modules keep in attributes of their own."""

    python: Any
    """State of Python's generator."""
    numpy: Any
    """The same of numpy's global one; None where numpy is not loaded."""
    cpu: Tensor
    """The same of torch's on the processor."""
    device: Tensor | None
    """The same of the current GPU's; None if no parameter lies on one."""
    tensors: list[tuple[Tensor, Tensor]]
    """Buffers and other tensors of the modules, and their values."""
    attributes: list[tuple[dict[str, Any], dict[str, Any]]]
    """Attributes of each module, and what they were."""
    contents: list[tuple[Any, Any]]
    """Lists, dicts and sets among them, and what was in them."""

    @classmethod
    def of(cls, module: nn.Module) -> "Kept":
        """As all is now, for a module and what is inside it.

        What a module keeps elsewhere, as in a global or a file, is not there.
        """
        numpy = sys.modules.get("numpy")
        on_cuda = any(parameter.is_cuda for parameter in module.parameters())
        tensors = list(module.buffers())
        attributes, contents = [], []
        for each in module.modules():
            own = {name: value for name, value in vars(each).items() if name not in _OF_TORCH}
            if not own:
                continue
            attributes.append((vars(each), own))
            tensors += [value for value in own.values() if _is_plain(value)]
            contents += [(v, v.copy()) for v in own.values() if type(v) in _CONTAINERS]
        return cls(
            python=random.getstate(),
            numpy=None if numpy is None else numpy.random.get_state(),
            cpu=torch.get_rng_state(),
            device=torch.cuda.get_rng_state() if on_cuda else None,
            tensors=[(tensor, tensor.detach().clone()) for tensor in tensors],
            attributes=attributes,
            contents=contents,
        )

    @contextlib.contextmanager
    def restored(self, module: nn.Module) -> Iterator[None]:
        """Puts all back for a while, and then what was there."""
        now = Kept.of(module)
        self.put()
        try:
            yield
        finally:
            now.put()

    def put(self) -> None:
        """Makes all what it was."""
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            torch.cuda.set_rng_state(self.device)
        for tensor, value in self.tensors:
            # By way of ``data``, so that a graph that still needs the tensor does not notice.
            tensor.data.copy_(value)
        for attributes, own in self.attributes:
            for name in [n for n in attributes if n not in _OF_TORCH and n not in own]:
                del attributes[name]
            attributes.update(own)
        for container, content in self.contents:
            container.clear()
            (container.update if hasattr(container, "update") else container.extend)(content)


def _is_plain(value: Any) -> bool:
    """Whether something is a tensor that may be written to."""
    return (
        isinstance(value, Tensor)
        and not value.requires_grad
        and value.layout is torch.strided
        and not value.is_inference()
    )
