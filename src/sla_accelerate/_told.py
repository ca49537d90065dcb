"""The host's own calls that say where a loop is: evaluations, saves, waiting for peers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import gather_object  # type: ignore[import-untyped]

from sla_accelerate import _runs
from slav1.phase import Phase

_PHASES = {"evaluation": Phase.EVALUATION, "checkpoint": Phase.CHECKPOINT}


class ToldAccelerator(Accelerator):  # type: ignore[misc]
    """An accelerator whose calls tell the open run, if there is one, what the loop does."""

    def sla_phase(self, name: str) -> AbstractContextManager[None]:
        """Marks something in the loop that is no part of a step and has its own limits.

        Args:
            name: ``evaluation`` or ``checkpoint``.

        Raises:
            ValueError: If it is none of these.
        """
        if name not in _PHASES:
            raise ValueError(f"sla_phase must be {' or '.join(map(repr, _PHASES))}, got {name!r}.")
        return self._sla_aside(_PHASES[name])

    @contextmanager
    def join_uneven_inputs(
        self, joinables: Any, even_batches: bool | None = None
    ) -> Iterator[None]:
        """Collective. As the host's; when it is over all ranks count steps alike again."""
        are_even = self.even_batches if even_batches is None else even_batches
        watch = None if are_even else _runs.current()
        if watch is not None:
            watch.are_batches_uneven = True
        with super().join_uneven_inputs(joinables, even_batches=even_batches):
            yield
        if watch is not None:
            watch.step = max(gather_object([watch.step]))

    def gather(self, tensor: Any) -> Any:
        """As the host's; waiting in it is no work."""
        with self._sla_with_peers():
            return super().gather(tensor)

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        """As the host's; waiting in it is no work."""
        with self._sla_with_peers():
            return super().reduce(*args, **kwargs)

    def wait_for_everyone(self) -> None:
        """As the host's; waiting in it is no work."""
        with self._sla_with_peers():
            super().wait_for_everyone()

    def unwrap_model(self, *args: Any, **kwargs: Any) -> Any:
        """As the host's; a sign of life, and of an evaluation if the model is in that mode."""
        watch = _runs.current()
        if watch is not None:
            watch.phases.note_progress()
        return super().unwrap_model(*args, **kwargs)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """As the host's; has the limits of a checkpoint."""
        with self._sla_aside(Phase.CHECKPOINT):
            super().save(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """As the host's; has the limits of a checkpoint."""
        with self._sla_aside(Phase.CHECKPOINT):
            super().save_model(*args, **kwargs)

    def get_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the host's; has the limits of a checkpoint."""
        with self._sla_aside(Phase.CHECKPOINT):
            return super().get_state_dict(*args, **kwargs)

    def _sla_aside(self, phase: Phase) -> AbstractContextManager[None]:
        watch = _runs.current()
        return nullcontext() if watch is None else watch.aside(phase)

    def _sla_with_peers(self) -> AbstractContextManager[None]:
        watch = _runs.current()
        return nullcontext() if watch is None else watch.phases.with_peers()
