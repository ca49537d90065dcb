"""Which line of code holds more and more memory: asked by the monitor, told by the rank."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from slav1.contract import Contract

LOOK_AFTER_STEPS = 10
"""Steps from the begin of a search to the first look, and from that to the second, at least."""

_MIB = float(1 << 20)


class Search(Protocol):
    """Something that knows which code holds how much, from its begin on."""

    def look(self) -> Mapping[tuple[str, ...], int]:
        """Bytes that are held now, by the stack that allocated them."""
        ...

    def close(self) -> None:
        """Ends the search."""
        ...


class PythonAllocations:
    """What Python's own allocator holds, by ``tracemalloc``; sees no tensors."""

    def __init__(self) -> None:
        """Begins to trace, which slows Python down until :meth:`close`."""
        import tracemalloc

        self._tracemalloc = tracemalloc
        self._was_tracing = tracemalloc.is_tracing()
        if not self._was_tracing:
            tracemalloc.start(5)

    def look(self) -> dict[tuple[str, ...], int]:
        """Bytes that are held now, by the stack that allocated them."""
        held = self._tracemalloc.take_snapshot().statistics("traceback")
        return {
            tuple(f"{frame.filename}:{frame.lineno}" for frame in reversed(each.traceback)): (
                each.size
            )
            for each in held
        }

    def close(self) -> None:
        """Ends the search."""
        if not self._was_tracing:
            self._tracemalloc.stop()


class Allocations:
    """One rank's answers to the monitor's question; looks only now and then, between steps."""

    def __init__(self, note: Callable[..., None], contract: Contract) -> None:
        """Searches for nothing yet.

        Args:
            note: Writes a notice, with evidence by keyword.
            contract: Says whether Python may be slowed down to find host memory.
        """
        self._note = note
        rule = contract.rules.get("memory_drift")
        self._trace_steps = 0 if rule is None else getattr(rule.detector, "trace_host_steps", 0)
        self._answered = 0
        self._search: Search | None = None
        self._is_device = False
        self._before: Mapping[tuple[str, ...], int] | None = None
        self._since_step = 0

    def look(self, wanted: int, step: int) -> None:
        """Begins a search, goes on with it, or ends it.

        Args:
            wanted: The monitor's word, ``Word.ALLOCATIONS_WANTED``.
            step: Step that has just ended.
        """
        if self._search is None and wanted == self._answered:
            return
        try:
            self._go_on(wanted, step)
        except Exception as error:  # noqa: BLE001 - a look at memory must never end a training
            self._end()
            self._note(f"The code that holds more and more memory can't be found: {error!r}.")

    def close(self) -> None:
        """Ends a search that is not over; never raises."""
        with contextlib.suppress(Exception):
            self._end()

    def _go_on(self, wanted: int, step: int) -> None:
        if self._search is None:
            self._answered, self._is_device = wanted, bool(wanted & 1)
            self._search = self._begun()
            self._since_step = step
        elif step - self._since_step < self._pause_steps:
            return
        elif self._before is None:
            self._before, self._since_step = self._search.look(), step
        else:
            self._tell(self._before, self._search.look(), step)
            self._end()

    @property
    def _pause_steps(self) -> int:
        is_second = self._before is not None
        if self._is_device or not is_second:
            return LOOK_AFTER_STEPS
        return max(LOOK_AFTER_STEPS, self._trace_steps)

    def _begun(self) -> Search | None:
        torch = sys.modules.get("torch")
        if not self._is_device:
            return PythonAllocations() if self._trace_steps else None
        if torch is None or not torch.cuda.is_initialized():
            return None
        # The monitor's process loads this module, and must not load torch.
        from slav1.torch_memory import AllocatorHistory

        return AllocatorHistory()

    def _tell(self, before: Mapping[Any, int], after: Mapping[Any, int], step: int) -> None:
        from slav1.torch_memory import growth_by_stack

        grown = growth_by_stack(before, after)
        where = "on the device" if self._is_device else "by Python"
        over = f"in steps {self._since_step + 1} to {step}"
        if not grown:
            self._note(
                f"No code held more memory {where} {over} than before: what grows was allocated "
                "elsewhere.",
                step=step,
                rule="memory_drift",
            )
            return
        added, stack = grown[0]
        self._note(
            f"The memory held {where} that grew most {over} was allocated at {stack[0]}: "
            f"{added / _MIB:,.1f} MiB more.",
            step=step,
            rule="memory_drift",
            stacks=[{"added_bytes": more, "frames": list(frames)} for more, frames in grown],
        )

    def _end(self) -> None:
        search, self._search, self._before = self._search, None, None
        if search is not None:
            search.close()
