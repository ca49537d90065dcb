"""Runs some micro-batches twice: the same numbers twice, or the arithmetic is wrong.

Imports torch, so nothing that the monitor imports may import this module.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from slav1.replicas._kept import Kept
from slav1.replicas._marks import Mark, Tolerance, mark, unequal_bits
from slav1.replicas._replay_words import about_tolerance

_log = logging.getLogger("slav1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A micro-batch that was run twice."""

    step: int
    """Optimizer step it belongs to."""

    micro_batch: int
    """Its number within the step."""

    differing: tuple[str, ...]
    """Parameters whose gradients differed; none if all is well."""

    is_exact: bool
    """Whether bits were compared; otherwise norms, with a tolerance."""

    wrong: str = ""
    """Which of the runs was wrong: ``first``, ``second`` or ``unclear``; empty if none."""


class MicrobatchReplay:
    """Finds wrong arithmetic that averaging over ranks would hide.

    Of some micro-batches the forward and the backward are run once more, from the same
    random numbers and buffers, and each parameter's gradient is compared as this rank
    computed it, before any reduction. That costs as much as its share of the batches. All
    ranks choose the same ones without asking each other.

    The first micro-batch is run three times, to learn whether gradients repeat bit for bit
    here. If not, their norms are compared, with ten times the largest difference of two honest
    runs as tolerance, which finds gross errors only; that is said once. If the repeats agree with
    each other but not with the first run, the computation keeps something between runs, and
    nothing is replayed.

    Not for models that talk to other ranks in their forward, nor for sharded parameters.

    Raises:
        ValueError: If ``ratio`` is out of range or the model can't be replayed.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> replay = MicrobatchReplay(model, ratio=1.0)
        >>> inputs = torch.ones(3, 2)
        >>> for step in range(2):
        ...     chosen = replay.begin(step)
        ...     model(inputs).sum().backward()
        ...     done = replay.end(lambda: model(inputs).sum())
        >>> done.differing
        ()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        ratio: float,
        seed: int = 0,
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        """Chooses nothing yet.

        Args:
            model: What is trained; DDP's wrapper, or the model itself.
            ratio: Share of the micro-batches that is replayed, above 0, at most 1.
            seed: Decides which; must be the same on all ranks.
            tell: Takes what people should know.
        """
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, got {ratio}.")
        if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
            raise ValueError(
                "model holds a SyncBatchNorm: its forward talks to other ranks, so it can't be "
                "run again on this rank alone."
            )
        self._model: Any = model
        self._ratio = ratio
        self._seed = seed
        self._tell = tell
        self._tolerance = Tolerance()
        self._kept: Kept | None = None
        self._marks: dict[str, Mark] = {}
        self._hooks: list[Any] = []
        self._place = (0, 0)
        self.is_on = True
        """Whether micro-batches are still replayed."""
        self.is_exact: bool | None = None
        """Whether gradients repeat bit for bit here; None before the first was replayed."""
        self.num_replayed = 0
        """Micro-batches that were compared."""
        self.num_differing = 0
        """Those of them whose gradients differed."""

    def begin(self, step: int, micro_batch: int = 0) -> bool:
        """Before the forward of a micro-batch; returns whether it will be replayed."""
        if not self.is_on or not (
            self.is_exact is None or is_chosen(step, micro_batch, self._ratio, self._seed)
        ):
            return False
        self.cancel()
        self._place = step, micro_batch
        self._kept = Kept.of(_inside(self._model))
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                self._hooks.append(parameter.register_hook(self._marking(name)))
        return True

    def cancel(self) -> None:
        """The micro-batch that was begun is not compared, as when its loss was thrown away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._marks, self._kept = [], {}, None

    def end(self, compute: Callable[[], Tensor]) -> Replayed | None:
        """After the backward and before the update.

        Args:
            compute: Runs the forward again and returns the very loss that was
                differentiated, scaled alike. It must not change anything else.

        Returns:
            What came of it; None if this micro-batch is not compared.
        """
        kept, first = self._kept, self._marks
        self.cancel()
        if kept is None:
            return None
        second = self._again(kept, compute)
        if self.is_exact is None:
            self._learn(first, second, self._again(kept, compute))
            return None
        self.num_replayed += 1
        differing = self._tolerance.differing(first, second)
        step, micro_batch = self._place
        wrong = ""
        if differing:
            self.num_differing += 1
            third = self._again(kept, compute)
            wrong = self._tolerance.which_is_wrong(first, second, third)
        return Replayed(
            step=step,
            micro_batch=micro_batch,
            differing=differing,
            is_exact=self.is_exact,
            wrong=wrong,
        )

    def _marking(self, name: str) -> Callable[[Tensor], None]:
        def note(gradient: Tensor) -> None:
            # What comes later in this backward may change the gradient in place.
            self._marks[name] = mark(gradient)

        return note

    def _again(self, kept: Kept, compute: Callable[[], Tensor]) -> dict[str, Mark]:
        named = [(name, one) for name, one in self._model.named_parameters() if one.requires_grad]
        with kept.restored(_inside(self._model)), _alone(self._model), torch.enable_grad():
            gradients = torch.autograd.grad(
                compute(), [parameter for _, parameter in named], allow_unused=True
            )
        return {
            name: mark(gradient)
            for (name, _), gradient in zip(named, gradients, strict=True)
            if gradient is not None
        }

    def _learn(
        self, first: dict[str, Mark], second: dict[str, Mark], third: dict[str, Mark]
    ) -> None:
        """Learns from three runs of one micro-batch what can be expected of two."""
        self.is_exact = not unequal_bits(second, third)
        if self.is_exact:
            if unequal_bits(first, second):
                self.is_on = False
                self._tell(
                    "Micro-batches are not replayed: a second run of the first one gave other "
                    "gradients than the first run, and a third the same as the second. So "
                    "something is kept between runs, in a module or outside of it."
                )
            return
        self._tell(about_tolerance(self._tolerance.widen(second, third)))


def is_chosen(step: int, micro_batch: int, ratio: float, seed: int = 0) -> bool:
    """Whether a micro-batch is among the share that is run twice; the same on all ranks."""
    drawn = xxhash.xxh3_64_intdigest(f"{seed}:{step}:{micro_batch}".encode())
    return drawn < ratio * (1 << 64)


def _inside(model: Any) -> nn.Module:
    """What DDP wraps, or the model itself."""
    module: nn.Module = model.module if hasattr(model, "require_forward_param_sync") else model
    return module


@contextlib.contextmanager
def _alone(model: Any) -> Iterator[None]:
    """Lets DDP neither send gradients nor copy buffers."""
    if not hasattr(model, "require_forward_param_sync"):
        yield
        return
    before = model.require_forward_param_sync
    model.require_forward_param_sync = False
    try:
        with model.no_sync():
            yield
    finally:
        model.require_forward_param_sync = before
