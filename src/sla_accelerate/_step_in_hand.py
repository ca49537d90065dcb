"""The step that has not ended yet: its losses, its batch, and what of them is not finite."""

import math
from typing import Any

from torch import Tensor

from sla_accelerate._gradients import LoopGradients
from sla_accelerate._prepared import Prepared
from slav1.recorder import Recorder, layout
from slav1.torch_memory import DeviceMemory
from slav1.torch_signals import WARMUP_STEPS, LossReader, non_finite_flags


class StepInHand:
    """Gathers what a step is made of, and writes its record when it ends."""

    def __init__(
        self,
        recorder: Recorder,
        gradients: LoopGradients,
        prepared: Prepared,
        *,
        keeps_batch: bool,
    ) -> None:
        """Starts before the first one.

        Args:
            recorder: Where the records go.
            gradients: What looks at the gradients.
            prepared: The models.
            keeps_batch: Whether the batch may be kept until the step ends, to be looked at
                if the loss is not finite.
        """
        self.has_loss = False
        """Whether a loss of it is known."""
        self.losses_are_shares = False
        """Whether the losses of micro-batches are divided already: their sum is the loss of
        a step, not their mean."""
        self._recorder = recorder
        self._gradients = gradients
        self._prepared = prepared
        self._keeps_batch = keeps_batch
        self._losses = LossReader(recorder, gradients.watch.heard)
        self._memory = DeviceMemory(recorder)
        self._num_batches = 0
        self._batch: Any = None
        self._flags = 0
        self._bad_batch: int | None = None

    def count_batch(self) -> None:
        """A batch to train with is there."""
        self._num_batches += 1
        self._recorder.count_batch()

    def keep_batch(self, batch: Any) -> None:
        """The loop gets this batch."""
        if self._keeps_batch:
            self._batch = batch

    def forget_batch(self) -> None:
        """Lets go of the batch."""
        self._batch = None

    def forget(self) -> None:
        """What was found belongs to a state that is gone."""
        self._flags, self._bad_batch, self.has_loss = 0, None, False

    def take_in(self, loss: Any) -> None:
        """Takes in one loss; looks for what is not finite while it can be told apart."""
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            return
        self.has_loss = True
        if loss.is_cuda:
            self._losses.add(loss.detach().reshape(()))
            return
        # Of the devices only CUDA tells when a copy has arrived; any other is waited for.
        value = loss.item()
        self._losses.add(value)
        if not math.isfinite(value):
            self._flags |= non_finite_flags(self._batch, self._prepared.parameters())
            if self._bad_batch is None:
                self._bad_batch = self._num_batches - 1

    def drain(self) -> None:
        """Waits for what is still on its way from a device."""
        self._losses.drain()

    def end(self, step: int, *, num_before: int) -> None:
        """Writes the record.

        Args:
            step: Its number.
            num_before: Steps that this process made before it.
        """
        flags, batch = self._flags, self._num_batches - 1
        if self._bad_batch is not None:
            batch = self._bad_batch
        if num_before < WARMUP_STEPS:
            flags |= layout.IS_WARMUP
        self.forget()
        self._batch = None
        self._memory.read(step)
        gradient = self._gradients.watch.take()
        if self._gradients.has_scaler:
            gradient = gradient._replace(is_scaled=True)
        # Accelerate is given the loss undivided, so the mean needs no scale.
        scale = None if self.losses_are_shares else 1
        self._losses.end_step(step, scale=scale, batch=batch, flags=flags, gradient=gradient)
