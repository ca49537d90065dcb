"""The faults of one rank while it trains: when each acts, and on what."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from slav1.testing._effects import EFFECTS
from slav1.testing._files import flip_a_bit
from slav1.testing._memory import flip_in_memory
from slav1.testing._tensors import (
    multiply,
    poison_gradient,
    poison_targets,
    redraw,
    with_nan,
    written_memory,
)
from slav1.testing.fault import EVERY_STEP, Fault

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.optim import Optimizer

NUM_TIMES = 20
"""Times that the base of a straggler's factor is the median of."""

_log = logging.getLogger("slav1.testing")


class Faults:
    """Carries out the faults planned for one rank.

    An adapter that got one from :func:`~slav1.testing.planned_faults` calls
    :meth:`at` whenever it enters a point, *after* it published its phase, and hands
    loss, batch and gradients through. In a step of several micro-batches a side effect
    happens once, and what is done to loss, batch or gradients every time. A fault of
    ``n`` steps acts in at most ``n`` steps of the process: steps that are repeated
    after a rollback are spared.
    """

    def __init__(self, faults: Sequence[Fault], *, rank: int) -> None:
        self.planned = tuple(faults)
        """What this rank does."""
        self._rank = rank
        self._step: int | None = None
        self._visit = 0  # counts changes of the step: a repeated step is a new visit
        self._acted_in: dict[int, int] = {}
        self._num_acted: dict[int, int] = defaultdict(int)
        self._kept: list[Tensor] = []
        self._entered: tuple[str, float] | None = None
        self._times_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=NUM_TIMES))

    def at(self, where: str, step: int) -> None:
        """Does what is planned for a point; may not return.

        Args:
            where: One of ``slav1.testing.WHERE``: the point that is being entered.
            step: Optimizer step, from 0.

        Raises:
            InjectedFaultError: If an ``exception`` is planned here.
        """
        if self._entered is not None:
            before, entered_s = self._entered
            self._times_s[before].append(time.perf_counter() - entered_s)
        for index, fault in enumerate(self.planned):
            if fault.kind not in EFFECTS or fault.where != where:
                continue
            if self._acts(index, step, is_once=True):
                EFFECTS[fault.kind](fault, self._rank, step, self._own_time_s(where))
        self._entered = where, time.perf_counter()

    def loss(self, step: int, loss: Tensor) -> Tensor:
        """Returns the loss as ``nan`` and ``jump`` make it, still part of the graph; keeps what
        ``leak`` leaks, on the device of the loss."""
        for index, fault in enumerate(self.planned):
            is_nan = fault.kind == "nan" and fault.what == "loss"
            if fault.kind == "leak" and self._acts(index, step, is_once=True):
                self._kept.append(written_memory(fault.mib, loss))
            if (is_nan or fault.kind == "jump") and self._acts(index, step):
                loss = multiply(loss, float("nan") if is_nan else fault.factor)
        return loss

    def batch(self, step: int, batch: Any) -> Any:
        """Returns the batch as ``nan`` and ``spike`` make it; the given one stays as it is.

        Args:
            step: Optimizer step the batch is for.
            batch: A tensor, or tensors in tuples, lists and mappings.

        Raises:
            ValueError: If the batch holds nothing that the fault could hit.
        """
        for index, fault in enumerate(self.planned):
            is_nan = fault.kind == "nan" and fault.what == "batch"
            if (is_nan or fault.kind == "spike") and self._acts(index, step):
                batch = with_nan(batch) if is_nan else poison_targets(batch)
        return batch

    def gradients(self, step: int, parameters: Iterable[Parameter]) -> None:
        """Puts a NaN into the first gradient, in place, if ``nan`` of gradients is planned.

        Args:
            step: Optimizer step.
            parameters: Those of the model, after the backward pass.

        Raises:
            ValueError: If no parameter has a gradient.
        """
        for index, fault in enumerate(self.planned):
            is_nan = fault.kind == "nan" and fault.what == "gradient"
            if is_nan and self._acts(index, step):
                poison_gradient(parameters)

    def first_weights(self, parameters: Iterable[Tensor]) -> None:
        """Changes all weights, in place, if ``seed`` is planned: as if this rank had drawn them
        from another seed and nobody had copied rank 0's. Once; draws no random number.

        Args:
            parameters: Those of the model, after its wrapper has done its work.
        """
        for index, fault in enumerate(self.planned):
            if fault.kind == "seed" and not self._num_acted[index]:
                self._num_acted[index] = 1
                redraw(parameters, seed=1 + self._rank)

    def memory(self, step: int, optimizers: Iterable[Optimizer]) -> None:
        """Flips one bit, in place, if ``bitflip`` is planned.

        Args:
            step: Optimizer step whose update comes next.
            optimizers: Those that will make it.

        Raises:
            ValueError: If there is nothing that it could hit.
        """
        for index, fault in enumerate(self.planned):
            if fault.kind == "bitflip" and self._acts(index, step, is_once=True):
                flip_in_memory(optimizers, fault.what, fault.bit)

    def skips_sync(self, step: int) -> bool:
        """Whether this rank leaves out the gradient sync of a step."""
        return self._any_acts("skip_collective", step)

    def ends_data(self, step: int) -> bool:
        """Whether this rank has no batch left for a step."""
        return self._any_acts("uneven", step)

    def checkpoint(self, path: Path, step: int) -> None:
        """Flips one bit of a file that was just written if ``corrupt`` is planned.

        Args:
            path: The file, on the disk and still to be read back.
            step: Last optimizer step that its checkpoint holds.
        """
        for index, fault in enumerate(self.planned):
            is_due = fault.kind == "corrupt" and step >= fault.step
            if is_due and (fault.steps == EVERY_STEP or self._num_acted[index] < fault.steps):
                self._num_acted[index] += 1
                _log.warning("Rank %d: injecting %s into %s", self._rank, fault, path)
                flip_a_bit(path)

    def _any_acts(self, kind: str, step: int) -> bool:
        return any(
            self._acts(index, step)
            for index, fault in enumerate(self.planned)
            if fault.kind == kind
        )

    def _acts(self, index: int, step: int, *, is_once: bool = False) -> bool:
        """Whether a fault acts now, and if so counts and announces it once a step."""
        if step != self._step:
            self._step = step
            self._visit += 1
        fault = self.planned[index]
        if self._acted_in.get(index) == self._visit:
            return not is_once
        is_used_up = fault.steps != EVERY_STEP and self._num_acted[index] >= fault.steps
        if is_used_up or not fault.covers(step):
            return False
        self._acted_in[index] = self._visit
        self._num_acted[index] += 1
        if self._num_acted[index] == 1:
            _log.warning(
                "Rank %d, step %d: injecting %s (time_ns=%d)",
                *(self._rank, step, fault, time.time_ns()),
            )
        return True

    def _own_time_s(self, where: str) -> float:
        times_s = self._times_s[where]
        return median(times_s) if times_s else 0.0
