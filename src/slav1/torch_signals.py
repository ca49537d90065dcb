"""From tensors to plain numbers: losses, gradients, and what was not finite.

The part that every host adapter needs. It imports torch, so nothing that the monitor
runs may import it.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slav1.recorder import Recorder, layout

MAX_LATE = 64
"""Steps whose loss may still be on its way from a device."""

LOSS = 0
"""Place of the loss among what is read of a step."""

WARMUP_STEPS = 3
"""First steps of a process: they compile, allocate and fill caches."""


class Readings(NamedTuple):
    """What is known about the gradient of one step, on the host or still on a device."""

    norm: Tensor | float | None = None
    """L2 norm before clipping; None if it was not read."""

    zero_share: Tensor | float | None = None
    """Share of the elements that are exactly 0; None if it was not read."""

    is_left_out: Tensor | bool = False
    """Whether the update was left out; on a device 1.0 or 0.0."""

    is_scaled: bool = False
    """Whether a gradient scaler is at work, which meets infinite gradients in healthy runs."""


NOTHING_READ = Readings()
"""A step whose gradient was not looked at."""


class LossReader:
    """Brings losses and what is read of gradients to the recorder, without ever waiting for
    a device.

    What is on the CPU is read at once. What is on a device is copied in the background and
    looked at when the next step ends; its record is shown to the monitor then.
    """

    def __init__(
        self, recorder: Recorder, hear_norm: Callable[[float], None] = lambda _: None
    ) -> None:
        """Starts without any.

        Args:
            recorder: Where they go.
            hear_norm: Called with each gradient norm, in the order of the steps.
        """
        self._recorder = recorder
        self._hear_norm = hear_norm
        self._late: deque[_Late] = deque()
        self._num_micro_batches = 0
        self._sum: Tensor | float | None = None

    def add(self, value: Tensor | float) -> None:
        """Takes in the loss of one micro-batch: a number, or one element on a device."""
        self._sum = value if self._sum is None else self._sum + value
        self._num_micro_batches += 1

    def end_step(
        self,
        step: int,
        *,
        scale: float | None,
        batch: int,
        flags: int,
        gradient: Readings = NOTHING_READ,
    ) -> None:
        """Writes the record of a step with the mean loss of its micro-batches.

        Args:
            step: Optimizer step that just ended.
            scale: What the host divided each micro-batch's loss by; None for parts that add
                up to the mean.
            batch: Batch number since the start; -1 if unknown.
            flags: Flags of :mod:`slav1.recorder.layout`.
            gradient: What was read of its gradient.
        """
        total, self._sum = self._sum, None
        num, self._num_micro_batches = self._num_micro_batches, 0
        loss = total
        if total is not None and scale is not None and scale != num:
            loss = total * (scale / num)
        values = [loss, *gradient[:3]]
        tensors = [value for value in values if isinstance(value, Tensor)]
        recorder = self._recorder
        if tensors:
            number = recorder.end_step(step, batch=batch, flags=flags)
            copy, arrival = _copy_to_host(tensors)
            places = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
            self._late.append(_Late(number, values, places, copy, arrival, gradient.is_scaled))
            self._show_arrived()
            return
        loss, norm, share, own_flags = self._read(values, is_scaled=gradient.is_scaled)
        number = recorder.end_step(
            step, loss=loss, grad_norm=norm, zero_share=share, batch=batch, flags=flags | own_flags
        )
        recorder.publish(number)

    def drain(self) -> None:
        """Waits for what is still on its way; called when training is over."""
        while self._late:
            self._late[0].arrival.synchronize()
            self._show_arrived()

    def _show_arrived(self) -> None:
        while self._late and (self._late[0].arrival.query() or len(self._late) > MAX_LATE):
            late = self._late.popleft()
            if late.arrival.query():
                arrived = dict(zip(late.places, late.copy.tolist(), strict=True))
                values = [arrived.get(i, value) for i, value in enumerate(late.values)]
                loss, norm, share, flags = self._read(values, is_scaled=late.is_scaled)
                if LOSS in arrived and not math.isfinite(arrived[LOSS]):
                    flags |= layout.LOSS_NON_FINITE
                self._recorder.add_late(
                    late.number, loss=loss, grad_norm=norm, zero_share=share, flags=flags
                )
            self._recorder.publish(late.number)

    def _read(self, values: list[Any], *, is_scaled: bool) -> tuple[float, float, float, int]:
        """Loss, norm, share of zeros and flags of a record, from numbers on the host."""
        loss, norm, zero_share, is_left_out = values
        flags = layout.UPDATE_LEFT_OUT if is_left_out else 0
        if is_scaled:
            flags |= layout.IS_SCALED
        if loss is None:
            loss = math.nan
        else:
            flags |= layout.HAS_LOSS
        # What a scaler finds infinite it leaves out by itself.
        if norm is None or (is_scaled and not math.isfinite(norm)):
            norm = math.nan
        else:
            flags |= layout.HAS_GRAD_NORM
            self._hear_norm(norm)
        return loss, norm, math.nan if zero_share is None else zero_share, flags


class _Late(NamedTuple):
    """A record that waits for numbers from a device."""

    number: int
    values: list[Any]
    places: list[int]
    """Which of ``values`` are on their way."""
    copy: Tensor
    arrival: Any
    is_scaled: bool


def _copy_to_host(values: list[Tensor]) -> tuple[Tensor, Any]:
    kinds = {value.dtype for value in values}
    # Each conversion is a launch of its own, and there seldom is anything to convert.
    kind = kinds.pop() if len(kinds) == 1 else torch.float64
    together = torch.stack([value.to(kind).reshape(()) for value in values])
    copy = torch.empty(len(values), dtype=kind, pin_memory=True)
    copy.copy_(together, non_blocking=True)
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
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    held = tensor.detach()
    try:
        if held.layout is not torch.strided:
            held = (held.coalesce() if held.layout is torch.sparse_coo else held).values()
        return bool(torch.isfinite(held).all())
    except RuntimeError:
        # Of some kinds torch can't tell, as of tensors on the meta device: nothing is known.
        return True


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _tensors(part)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _tensors(part)
