"""Copies of a state in memory that is kept from one copy to the next.

Imports torch, so nothing that the monitor imports may import this module.
"""

import contextlib
import copy
import ctypes
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

PIECE_BYTES = 2 << 20
"""How much one thread copies at a time."""

ALONE_BYTES = 32 << 20
"""Below this a second thread costs more than it saves."""

MAX_THREADS = 4
"""More gain nothing: these fill the memory bus."""

_Piece: TypeAlias = tuple[int, int, int]
# Where to, where from, how many bytes.

_Place: TypeAlias = tuple[Any, ...]
# The keys that lead to a tensor: joined to a text, two places could read alike.

NUM_SETS = 2
"""One set may still be written while the next copy is made into the other."""


class SnapshotBuffers:
    """Memory for copies of one state; two sets, used in turn.

    A copy stays as it is until the second copy after it: as long as at most one is being
    written, nothing changes under the writer.

    Args:
        pin: Whether to pin the memory of what comes from a device; None pins if CUDA is there.
    """

    def __init__(self, *, pin: bool | None = None) -> None:
        self._pin = torch.cuda.is_available() if pin is None else pin
        self._sets: list[dict[_Place, Tensor]] = [{} for _ in range(NUM_SETS)]
        self._next = 0

    def prepare(self, state: Any) -> None:
        """Takes and touches the memory for both sets, so that no later copy waits for it."""
        for _ in range(NUM_SETS):
            snapshot(state, self)

    def take_set(self) -> dict[_Place, Tensor]:
        """The set whose turn it is; for :func:`snapshot`."""
        taken = self._sets[self._next]
        self._next = (self._next + 1) % NUM_SETS
        return taken

    def fitting(self, buffers: dict[_Place, Tensor], place: _Place, like: Tensor) -> Tensor:
        """Memory for the tensor at a place in the state, anew if type or shape changed; for
        :func:`snapshot`."""
        present = buffers.get(place)
        if present is not None and (present.dtype, present.shape) == (like.dtype, like.shape):
            return present
        pin = self._pin and like.device.type == "cuda"
        made = torch.empty(like.shape, dtype=like.dtype, pin_memory=pin)
        buffers[place] = made
        return made


def snapshot(state: Any, buffers: SnapshotBuffers | None = None) -> Any:
    """A copy of a state that shares nothing with it.

    Containers are built anew, tensors are copied to the host, whatever else is copied deeply.
    Tensors that are the same memory are one tensor in the copy too. Waits until copies from a
    device have arrived.

    Args:
        state: Tensors in nested dicts, lists and tuples, beside plain values.
        buffers: Where to put the copies; None takes new memory.
    """
    copier = _Copier(buffers or SnapshotBuffers())
    made = copier.rebuild(state, ())
    copier.finish()
    return made


class _Copier:
    def __init__(self, buffers: SnapshotBuffers) -> None:
        self._buffers = buffers
        self._set = buffers.take_set()
        self._seen: dict[tuple[Any, ...], Tensor] = {}
        self._from: list[Tensor] = []
        self._to: list[Tensor] = []

    def rebuild(self, value: Any, place: _Place) -> Any:
        if isinstance(value, Tensor):
            return self._copy(value, place)
        if isinstance(value, str | int | float | bool | bytes | None):
            return value
        if type(value) is tuple:
            return tuple(self.rebuild(one, (*place, i)) for i, one in enumerate(value))
        if type(value) is list:
            return [self.rebuild(one, (*place, i)) for i, one in enumerate(value)]
        if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
            return self._rebuild_mapping(value, place)
        return copy.deepcopy(value)

    def _rebuild_mapping(self, value: Mapping[Any, Any], place: _Place) -> Any:
        rebuilt = copy.copy(value)
        for key, inner in value.items():
            rebuilt[key] = self.rebuild(inner, (*place, key))  # type: ignore[index]
        return rebuilt

    def _copy(self, tensor: Tensor, place: _Place) -> Any:
        tensor = tensor.detach()
        if tensor.layout is not torch.strided or hasattr(tensor, "to_local"):
            # Spread or sparse: its own class knows how to copy it, on its own device.
            return tensor.clone()
        memory = (
            tensor.device,
            tensor.data_ptr(),
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.is_conj(),
            tensor.is_neg(),
        )
        if tensor.numel() and memory in self._seen:
            return self._seen[memory]
        buffer = self._buffers.fitting(self._set, place, tensor)
        self._seen[memory] = buffer
        self._from.append(tensor)
        self._to.append(buffer)
        return buffer

    def finish(self) -> None:
        plain: list[tuple[Tensor, Tensor]] = []
        others: list[tuple[Tensor, Tensor]] = []
        for to, source in zip(self._to, self._from, strict=True):
            (plain if _is_plain(source) else others).append((to, source))
        with torch.no_grad():
            for to, source in others:
                to.copy_(source, non_blocking=True)
        _copy_bytes(plain)
        for device in {one.device for one in self._from if one.device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor's values are the bytes that lie at its place, one after the other."""
    is_lazy = tensor.is_neg() or tensor.is_conj()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not is_lazy


def _copy_bytes(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copies plain memory, in a few threads that wait for each other once at the end.

    torch's own copy makes its threads wait for each other after each tensor; on a machine
    that does other things too this was measured to take five times as long.
    """
    pieces = [
        (to.data_ptr() + start, source.data_ptr() + start, min(PIECE_BYTES, size - start))
        for to, source in pairs
        for size in (to.numel() * to.element_size(),)
        for start in range(0, size, PIECE_BYTES)
    ]
    num_bytes = sum(size for _, _, size in pieces)
    num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)), 1 + num_bytes // ALONE_BYTES)
    # Handed out in small lots: nobody waits long for the thread that ends last.
    lots = deque(_in_lots(pieces))

    def work() -> None:
        while lots:
            with contextlib.suppress(IndexError):
                _move(lots.popleft())

    helpers = [
        threading.Thread(target=work, name="slav1-copy", daemon=True)
        for _ in range(num_threads - 1)
    ]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()


def _in_lots(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    lot: list[_Piece] = []
    size = 0
    for piece in pieces:
        lot.append(piece)
        size += piece[2]
        if size >= PIECE_BYTES:
            yield lot
            lot, size = [], 0
    if lot:
        yield lot


def _move(pieces: list[_Piece]) -> None:
    for to, source, size in pieces:
        ctypes.memmove(to, source, size)
