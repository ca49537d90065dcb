"""The states of this process's random number generators, as values that travel."""

import random
import zlib
from base64 import b64decode, b64encode
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

LOOK_AT_FIRST = 4
"""Fetches of a pass that are looked at."""

LOOK_AT_EACH = 64
"""Later on, one fetch of this many."""

# What ``torch.get_rng_state`` asks, by a shorter way: it is done for each batch.
_TORCH = torch.default_generator


class Noise(NamedTuple):
    """States of the generators that a loop and its dataset draw from on the host."""

    torch: Tensor
    """Of torch; bytes, shape ``(5056,)``."""

    python: Any = None
    """Of ``random``; None where nobody draws from it."""

    numpy: Any = None
    """Of ``numpy.random``; None where nobody draws from it."""


def capture(*, python: bool = True, numpy: bool = True) -> Noise:
    """The states as they are; those of Python and numpy take 0.1 ms, so only if asked."""
    return Noise(
        _TORCH.get_state(),
        random.getstate() if python else None,
        # The global generator is the one that data sets draw from.
        np.random.get_state() if numpy else None,  # noqa: NPY002
    )


def restore(noise: Noise) -> None:
    """Goes back to captured states."""
    torch.set_rng_state(noise.torch)
    if noise.python is not None:
        random.setstate(noise.python)
    if noise.numpy is not None:
        np.random.set_state(noise.numpy)  # noqa: NPY002 - the same


class Draws:
    """Which generators fetching a batch draws from; looked at now and then, as it takes time."""

    def __init__(self) -> None:
        self.python = False
        """Whether ``random`` is among them."""
        self.numpy = False
        """Whether ``numpy.random`` is among them."""
        self._num_seen = 0
        self._before: Noise | None = None

    def begin(self) -> Noise:
        """A batch is about to be fetched; returns the states that matter."""
        num_seen = self._num_seen
        self._num_seen = num_seen + 1
        looks = num_seen < LOOK_AT_FIRST or num_seen % LOOK_AT_EACH == 0
        if not (looks or self.python or self.numpy):
            return Noise(_TORCH.get_state())
        self._before = capture() if looks and not (self.python and self.numpy) else None
        if self._before is not None:
            return self._before
        return capture(python=self.python, numpy=self.numpy)

    def end(self) -> None:
        """The batch is there."""
        before, self._before = self._before, None
        if before is not None:
            after = capture()
            self.python |= before.python != after.python
            self.numpy |= _differs(before.numpy, after.numpy)


def to_plain(noise: Noise) -> dict[str, Any]:
    """The states as plain values for JSON."""
    plain: dict[str, Any] = {"torch": tensor_to_text(noise.torch), "python": None, "numpy": None}
    if noise.python is not None:
        version, words, gauss = noise.python
        plain["python"] = [version, _packed(words), gauss]
    if noise.numpy is not None:
        kind, keys, place, has_gauss, cached = noise.numpy
        plain["numpy"] = [kind, _packed(keys), int(place), int(has_gauss), float(cached)]
    return plain


def from_plain(plain: dict[str, Any]) -> Noise:
    """Reads what :func:`to_plain` made."""
    python, numpy = plain["python"], plain["numpy"]
    if python is not None:
        version, words, gauss = python
        python = (version, tuple(_unpacked(words).tolist()), gauss)
    if numpy is not None:
        kind, keys, place, has_gauss, cached = numpy
        numpy = (kind, _unpacked(keys), place, has_gauss, cached)
    return Noise(tensor_from_text(plain["torch"]), python, numpy)


def tensor_to_text(state: Tensor) -> str:
    """A generator's state as text."""
    return b64encode(state.numpy().tobytes()).decode()


def tensor_from_text(text: str) -> Tensor:
    """Reads what :func:`tensor_to_text` made."""
    return torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8)


def check_sum(number: int, indices: Any) -> int:
    """Goes on with a check sum over the indices of batches."""
    return zlib.crc32(repr(indices).encode(), number)


def _packed(words: Any) -> str:
    return b64encode(zlib.compress(np.asarray(words, dtype="<u4").tobytes(), 1)).decode()


def _unpacked(text: str) -> Any:
    return np.frombuffer(zlib.decompress(b64decode(text)), dtype="<u4").astype(np.uint32)


def _differs(before: Any, after: Any) -> bool:
    return before[2:] != after[2:] or not np.array_equal(before[1], after[1])
