"""From tensors to plain numbers: losses, what was not finite, where own work ends.

The part that every host adapter needs. It imports torch, so nothing that the monitor
runs may import it.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from slav1.recorder import Recorder, layout

MAX_LATE = 64
"""Steps whose loss may still be on its way from a device."""

WARMUP_STEPS = 3
"""First steps of a process: they compile, allocate and fill caches."""


class LossReader:
    """Brings losses from the device to the recorder without ever waiting for it.

    A loss on the CPU is read at once. One on a device is copied in the background and
    looked at when the next step ends; its record is shown to the monitor then.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._late: deque[tuple[int, Tensor, Any]] = deque()
        self._num_micro_batches = 0
        self._sum: Tensor | float | None = None

    def add(self, value: Tensor | float) -> None:
        """Takes in the loss of one micro-batch: a number, or one element on a device."""
        self._sum = value if self._sum is None else self._sum + value
        self._num_micro_batches += 1

    def end_step(self, step: int, *, scale: float, batch: int, flags: int) -> None:
        """Writes the record of a step with the mean loss of its micro-batches.

        Args:
            step: Optimizer step that just ended.
            scale: What the host divided each micro-batch's loss by.
            batch: Batch number since the start; -1 if unknown.
            flags: Flags of :mod:`slav1.recorder.layout`.
        """
        total, self._sum = self._sum, None
        num, self._num_micro_batches = self._num_micro_batches, 0
        recorder = self._recorder
        if isinstance(total, Tensor):
            number = recorder.end_step(step, batch=batch, flags=flags)
            self._late.append((number, *_copy_to_host(total * (scale / num))))
            self._show_arrived()
            return
        if total is not None:
            loss = total * scale / num
            flags |= layout.HAS_LOSS
            number = recorder.end_step(step, loss=loss, batch=batch, flags=flags)
        else:
            number = recorder.end_step(step, batch=batch, flags=flags)
        recorder.publish(number)

    def drain(self) -> None:
        """Waits for the losses still on their way; called when training is over."""
        while self._late:
            self._late[0][2].synchronize()
            self._show_arrived()

    def _show_arrived(self) -> None:
        while self._late and (self._late[0][2].query() or len(self._late) > MAX_LATE):
            number, copy, arrival = self._late.popleft()
            if arrival.query():
                loss = copy.item()
                bad = 0 if math.isfinite(loss) else layout.LOSS_NON_FINITE
                self._recorder.add_loss(number, loss, layout.HAS_LOSS | bad)
            self._recorder.publish(number)


def _copy_to_host(value: Tensor) -> tuple[Tensor, Any]:
    copy = torch.empty((), dtype=torch.float64, pin_memory=True)
    copy.copy_(value.to(torch.float64), non_blocking=True)
    arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrival.record()
    return copy, arrival


def non_finite_flags(batch: Any, parameters: Iterable[Tensor]) -> int:
    """Looks what was not finite when a loss was not, before the update spreads it.

    Args:
        batch: What the training step was given.
        parameters: Those of the model, as the loss was computed with them.

    Returns:
        Flags of :mod:`slav1.recorder.layout`.
    """
    flags = layout.LOSS_NON_FINITE
    if any(not _is_finite(tensor) for tensor in _tensors(batch)):
        flags |= layout.INPUT_NON_FINITE
    if any(not _is_finite(parameter) for parameter in parameters):
        flags |= layout.PARAMETERS_NON_FINITE
    return flags


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor.detach()).all())


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _tensors(part)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _tensors(part)


class OwnWorkEnd:
    """Finds the parameter whose gradient is ready last and stamps that moment.

    What remains of the backward after it is waiting for other ranks. The order is the
    same in every step of a static graph, so one backward with a hook on every parameter
    tells which one to keep.
    """

    def __init__(self, module: torch.nn.Module, stamp: Callable[[], None]) -> None:
        """Hooks every parameter for the next backward."""
        self._stamp = stamp
        self._last: Tensor | None = None
        self._hook: Any = None
        self._search = [
            _on_gradient(parameter, self._see)
            for parameter in module.parameters()
            if parameter.requires_grad and parameter.is_leaf
        ]

    def settle(self) -> None:
        """After a backward: keeps the one hook that fired last."""
        if self._hook is None and self._last is not None:
            self._drop_search()
            stamp = self._stamp
            self._hook = _on_gradient(self._last, lambda _: stamp())
            # The hook is found through the parameter; the parameter need not be kept alive.
            self._last = None

    @property
    def is_settled(self) -> bool:
        """Whether the last parameter is known."""
        return self._hook is not None

    def remove(self) -> None:
        """Takes all hooks away."""
        self._drop_search()
        if self._hook is not None:
            self._hook.remove()

    def _see(self, parameter: Tensor) -> None:
        self._last = parameter

    def _drop_search(self) -> None:
        for hook in self._search:
            hook.remove()
        self._search = []


def _on_gradient(parameter: Any, then: Callable[[Tensor], None]) -> Any:
    """Calls ``then`` whenever the gradient of ``parameter`` is there; returns the hook."""
    return parameter.register_post_accumulate_grad_hook(then)
