"""What a GPU holds, and which lines of code hold more and more of it.

It imports torch, so nothing that the monitor runs may import it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from slav1.recorder import Recorder

EVERY_STEPS = 5
"""Steps from one reading of the allocator to the next: blocks of 25 hold whole ones."""

NUM_FRAMES = 5
"""Frames that are told of a stack, innermost first."""

_MIB = float(1 << 20)

Stack: TypeAlias = tuple[str, ...]
"""Frames as ``file:line function``, innermost first."""

# Whose frames are not the line to look at.
_SOURCES = Path(__file__).parents[1]
_LIBRARIES = (
    *(f"-packages/{name}/" for name in ("torch", "lightning", "pytorch_lightning", "accelerate")),
    *(f"{_SOURCES}/{name}/" for name in ("slav1", "sla_lightning", "sla_accelerate")),
)


class DeviceMemory:
    """Reads what this rank's GPU holds, from torch's own books: nothing waits for the device."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._device: int | None = None

    def read(self, step: int) -> None:
        """Tells the recorder, every few steps and only where CUDA is used; to be called
        after the update and before the record of ``step`` is written."""
        if step % EVERY_STEPS or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        if self._device is None:
            self._device = torch.cuda.current_device()
            total = torch.cuda.get_device_properties(self._device).total_memory
            self._recorder.has_device(total / _MIB)
        # A nested dict as it comes: the flat one that torch makes of it costs ten times more.
        books = torch.cuda.memory_stats_as_nested_dict(self._device)
        if books:
            self._recorder.note_memory(
                books["allocated_bytes"]["all"]["current"] / _MIB,
                books["reserved_bytes"]["all"]["current"] / _MIB,
            )


class AllocatorHistory:
    """Finds the code whose tensors on the GPU become more, by two looks at the allocator."""

    def __init__(self) -> None:
        """Lets the allocator keep the stack of each allocation from now on."""
        torch.cuda.memory._record_memory_history(  # noqa: SLF001 - the documented way
            enabled="state", context="state", stacks="python"
        )

    def look(self) -> dict[Stack, int]:
        """Bytes that are held now, by the stack that allocated them."""
        return held_by_stack(torch.cuda.memory._snapshot())  # noqa: SLF001

    def close(self) -> None:
        """Lets the allocator forget stacks again."""
        torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001


def held_by_stack(snapshot: Mapping[str, Any]) -> dict[Stack, int]:
    """Adds up what is held in a snapshot of torch's allocator.

    Args:
        snapshot: As ``torch.cuda.memory._snapshot()`` gives it.

    Returns:
        Bytes by stack; what was allocated before stacks were kept is left out.
    """
    held: dict[Stack, int] = defaultdict(int)
    for segment in snapshot.get("segments", ()):
        for block in segment.get("blocks", ()):
            if block.get("state") == "active_allocated" and block.get("frames"):
                frames = block["frames"]
                stack = tuple(f"{f['filename']}:{f['line']} {f['name']}" for f in frames)
                held[stack] += block.get("requested_size") or block["size"]
    return dict(held)


def growth_by_stack(
    before: Mapping[Stack, int], after: Mapping[Stack, int], *, most: int = 3
) -> list[tuple[int, Stack]]:
    """The stacks that hold more than before, most first.

    Args:
        before: Bytes by stack at a first look.
        after: The same at a second.
        most: How many to return.

    Returns:
        Bytes that were added, and the stack cut to the frames worth reading.
    """
    grown = [(held - before.get(stack, 0), stack) for stack, held in after.items()]
    rising = sorted((each for each in grown if each[0] > 0), reverse=True)
    return [(added, _cut(stack)) for added, stack in rising[:most]]


def _cut(stack: Stack) -> Stack:
    """The stack from the innermost frame on that is the user's own, if there is one."""
    for place in _own_places(stack):
        return stack[place : place + NUM_FRAMES]
    return stack[:NUM_FRAMES]


def _own_places(stack: Stack) -> Iterator[int]:
    for place, frame in enumerate(stack):
        if not any(library in frame for library in _LIBRARIES):
            yield place
