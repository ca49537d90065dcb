"""Runs some micro-batches twice: the same numbers twice, or the arithmetic is wrong.

Imports torch, so nothing that the monitor imports may import this module.
"""

import contextlib
import logging
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import xxhash
from torch import Tensor, nn

from slav1.replicas.hashing import Digester, Workspace

MIN_TOLERANCE_RATIO = 1e-6
"""Least difference of two norms that counts where gradients do not repeat bit for bit."""

SAFETY = 10.0
"""By how much a difference must exceed what two honest runs differed by."""

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
        self._tolerance_ratio: float | None = None
        self._kept: _Kept | None = None
        self._marks: dict[str, _Mark] = {}
        self._hooks: list[Any] = []
        self._place = (0, 0)
        self._workspace: Workspace | None = None
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
        if not self.is_on or not (self.is_exact is None or self._is_chosen(step, micro_batch)):
            return False
        self.cancel()
        self._place = step, micro_batch
        self._kept = _Kept.of(self._model)
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                self._hooks.append(parameter.register_hook(self._marker(name)))
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
        differing = self._differing(first, second)
        step, micro_batch = self._place
        wrong = ""
        if differing:
            self.num_differing += 1
            third = self._again(kept, compute)
            is_first_wrong = not self._differing(second, third)
            is_second_wrong = not self._differing(first, third)
            wrong = "first" if is_first_wrong else "second" if is_second_wrong else "unclear"
        return Replayed(
            step=step,
            micro_batch=micro_batch,
            differing=differing,
            is_exact=self.is_exact,
            wrong=wrong,
        )

    def _is_chosen(self, step: int, micro_batch: int) -> bool:
        drawn = xxhash.xxh3_64_intdigest(f"{self._seed}:{step}:{micro_batch}".encode())
        return drawn < self._ratio * (1 << 64)

    def _marker(self, name: str) -> Callable[[Tensor], None]:
        def mark(gradient: Tensor) -> None:
            self._marks[name] = self._mark(gradient)

        return mark

    def _mark(self, gradient: Tensor) -> "_Mark":
        # What comes later in this backward may change the gradient in place.
        plain = gradient.detach().contiguous()
        if self._workspace is None or self._workspace.device != plain.device:
            self._workspace = Workspace(plain.device)
        sums = Digester([plain], self._workspace).sums(0)
        return _Mark(sums, torch.linalg.vector_norm(plain, dtype=torch.float64))

    def _again(self, kept: "_Kept", compute: Callable[[], Tensor]) -> dict[str, "_Mark"]:
        named = [(name, one) for name, one in self._model.named_parameters() if one.requires_grad]
        with kept.restored(self._model), _alone(self._model), torch.enable_grad():
            gradients = torch.autograd.grad(
                compute(), [parameter for _, parameter in named], allow_unused=True
            )
        return {
            name: self._mark(gradient)
            for (name, _), gradient in zip(named, gradients, strict=True)
            if gradient is not None
        }

    def _learn(
        self, first: dict[str, "_Mark"], second: dict[str, "_Mark"], third: dict[str, "_Mark"]
    ) -> None:
        """Learns from three runs of one micro-batch what can be expected of two."""
        self.is_exact = not _unequal_bits(second, third)
        if self.is_exact:
            if _unequal_bits(first, second):
                self.is_on = False
                self._tell(
                    "Micro-batches are not replayed: a second run of the first one gave other "
                    "gradients than the first run, and a third the same as the second. So "
                    "something is kept between runs, in a module or outside of it."
                )
            return
        apart = max(_apart(second, third).values(), default=0.0)
        self._tolerance_ratio = max(MIN_TOLERANCE_RATIO, SAFETY * apart)
        self._tell(
            "Gradients do not repeat bit for bit here, so replayed micro-batches are compared by "
            f"the norms of their gradients, to {self._tolerance_ratio:.1e}: only gross errors "
            "are found. torch.use_deterministic_algorithms(True) makes them repeat."
        )

    def _differing(self, one: dict[str, "_Mark"], other: dict[str, "_Mark"]) -> tuple[str, ...]:
        if self._tolerance_ratio is None:
            return _unequal_bits(one, other)
        limit = self._tolerance_ratio
        # Written so that what is not a number is no honest difference either.
        return tuple(name for name, apart in _apart(one, other).items() if not apart <= limit)


class _Mark(NamedTuple):
    """What is kept of one gradient, on its device."""

    sums: Tensor
    norm: Tensor


class _Kept(NamedTuple):
    """What a forward begins with: generators and buffers."""

    python: Any
    numpy: Any
    cpu: Tensor
    device: Tensor | None
    buffers: list[Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> "_Kept":
        """As they are now."""
        numpy = sys.modules.get("numpy")
        on_cuda = any(parameter.is_cuda for parameter in model.parameters())
        return cls(
            python=random.getstate(),
            numpy=None if numpy is None else numpy.random.get_state(),
            cpu=torch.get_rng_state(),
            device=torch.cuda.get_rng_state() if on_cuda else None,
            buffers=[buffer.detach().clone() for buffer in model.buffers()],
        )

    @contextlib.contextmanager
    def restored(self, model: nn.Module) -> Iterator[None]:
        """Puts all back for a while, and then what was there."""
        now = _Kept.of(model)
        self.put(model)
        try:
            yield
        finally:
            now.put(model)

    def put(self, model: nn.Module) -> None:
        """Makes generators and buffers what they were."""
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            torch.cuda.set_rng_state(self.device)
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), self.buffers, strict=True):
                buffer.copy_(value)


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


def _unequal_bits(one: dict[str, _Mark], other: dict[str, _Mark]) -> tuple[str, ...]:
    names = sorted(one.keys() & other.keys())
    missing = sorted(one.keys() ^ other.keys())
    if not names:
        return tuple(missing)
    equal = torch.stack([(one[name].sums == other[name].sums).all() for name in names]).tolist()
    return (*missing, *(name for name, same in zip(names, equal, strict=True) if not same))


def _apart(one: dict[str, _Mark], other: dict[str, _Mark]) -> dict[str, float]:
    """How far the norms of two runs are apart, as a share of the norm of all gradients."""
    names = sorted(one.keys() & other.keys())
    if not names:
        return {}
    here = torch.stack([one[name].norm for name in names])
    there = torch.stack([other[name].norm for name in names])
    whole = torch.maximum(torch.linalg.vector_norm(here), torch.linalg.vector_norm(there))
    apart = (here - there).abs() / whole.clamp(min=1e-300)
    return dict(zip(names, apart.tolist(), strict=True))
