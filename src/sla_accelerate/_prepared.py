"""The models and optimizers that Accelerate prepared, and the hooks on them."""

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet, ref

from torch import nn
from torch.optim import Optimizer

from sla_accelerate._updates import Updates
from slav1.replicas import Found, find_copies
from slav1.torch_own_work import OwnWorkEnd


class Prepared:
    """What a run watches of the user's objects. Keeps none of them alive."""

    def __init__(
        self,
        *,
        own_work_ends: Callable[[], None],
        before_step: Callable[[Optimizer], None],
        after_step: Callable[[Optimizer], None],
    ) -> None:
        """Starts with nothing.

        Args:
            own_work_ends: Called in each backward of a model that syncs its gradients,
                when the last of them is ready on this rank.
            before_step: Called before each real step of an optimizer.
            after_step: Called after it; what it raises reaches the user's loop.
        """
        self._own_work_ends = own_work_ends
        self._before_step = before_step
        self._after_step = after_step
        # Lists of references: walking a WeakSet takes several microseconds, in each step.
        self._models: list[ref[nn.Module]] = []
        self._syncing: list[ref[Any]] = []
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._order: list[ref[Optimizer]] = []
        self._own_work: list[OwnWorkEnd] = []
        self._num_trainable: int | None = None
        self._updates: list[Updates] = []

    @property
    def num_optimizers(self) -> int:
        """Optimizers that are still there."""
        return len(self._optimizers)

    def add(self, item: nn.Module | Optimizer) -> None:
        """Watches a prepared model or optimizer; one that is known stays as it is.

        The hooks on an optimizer are torch's own and lie on the one underneath: they see
        real steps only, neither those left out while gradients accumulate nor those that
        mixed precision skips.
        """
        if isinstance(item, nn.Module):
            self._add_model(item)
        else:
            self._add_optimizer(item)

    @property
    def num_trainable(self) -> int:
        """Parameters of all models that are trained, counted when a model is prepared."""
        if self._num_trainable is None:
            self._num_trainable = sum(1 for one in self.parameters() if one.requires_grad)
        return self._num_trainable

    def is_training(self) -> bool:
        """Whether any model is in training mode; True if there is no model."""
        is_any = False
        for reference in self._models:
            model = reference()
            if model is not None:
                if model.training:
                    return True
                is_any = True
        return not is_any

    def syncs_gradients(self) -> bool:
        """Whether a backward that begins now ends in a gradient sync of its own."""
        return any(
            model.require_backward_grad_sync
            for reference in self._syncing
            if (model := reference()) is not None
        )

    def leave_out_sync(self) -> Callable[[], None]:
        """Lets the next backward of this rank leave out its sync; returns the way back."""
        models = [model for reference in self._syncing if (model := reference()) is not None]
        syncing = [model for model in models if model.require_backward_grad_sync]
        for model in syncing:
            model.require_backward_grad_sync = False

        def undo() -> None:
            for model in syncing:
                model.require_backward_grad_sync = True

        return undo

    def settle(self) -> None:
        """After a synced backward: keeps only the hook that marks the end of own work."""
        for own_work in self._own_work:
            if not own_work.is_settled:
                own_work.settle()

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters of all models."""
        for reference in self._models:
            model = reference()
            if model is not None:
                yield from model.parameters()

    def copies(self) -> Found:
        """What of all this other ranks hold as well."""
        models = [model for reference in self._models if (model := reference()) is not None]
        return find_copies(models, self.optimizers())

    def modules(self) -> list[tuple[str, nn.Module]]:
        """The models without DDP around them, by name: the number of each after the first."""
        models: list[Any] = [one for reference in self._models if (one := reference()) is not None]
        is_ddp = [hasattr(model, "require_forward_param_sync") for model in models]
        return [
            (str(number or ""), model.module if is_ddp[number] else model)
            for number, model in enumerate(models)
        ]

    def optimizers(self) -> list[Optimizer]:
        """Optimizers in the order of preparing, which is that of all ranks."""
        order = [one for reference in self._order if (one := reference()) is not None]
        return [one for one in order if one in self._optimizers]

    def forget_updates(self) -> None:
        """No update is under way, as when the next batch is asked for."""
        for updates in self._updates:
            updates.forget()

    def remove(self) -> None:
        """Takes all hooks away and forgets all objects."""
        for updates in self._updates:
            updates.remove()
        for own_work in self._own_work:
            own_work.remove()
        self._updates, self._own_work = [], []
        self._models, self._syncing, self._optimizers = [], [], WeakSet()
        self._order = []

    def _add_model(self, model: nn.Module) -> None:
        if any(reference() is model for reference in self._models):
            return
        self._models.append(ref(model))
        self._num_trainable = None
        if hasattr(model, "require_backward_grad_sync"):
            self._syncing.append(ref(model))
            self._own_work.append(OwnWorkEnd(model, self._own_work_ends))

    def _add_optimizer(self, optimizer: Optimizer) -> None:
        inner = getattr(optimizer, "optimizer", optimizer)
        if not isinstance(inner, Optimizer) or inner in self._optimizers:
            return
        self._optimizers.add(inner)
        self._order.append(ref(inner))
        self._updates.append(Updates(inner, self._before_step, self._after_step))
