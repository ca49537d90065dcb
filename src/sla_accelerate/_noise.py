"""The states of this process's random number generators, as values that travel."""

import random
import zlib
from base64 import b64decode, b64encode
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Noise(NamedTuple):
    """States of the generators that a loop and its dataset draw from on the host."""

    torch: Tensor
    """Of torch; bytes, shape ``(5056,)``."""

    python: Any
    """Of ``random``."""

    numpy: Any
    """Of ``numpy.random``."""


def capture() -> Noise:
    """The states as they are."""
    # The global generator is the one that data sets draw from.
    numpy = np.random.get_state()  # noqa: NPY002
    return Noise(torch.get_rng_state(), random.getstate(), numpy)


def restore(noise: Noise) -> None:
    """Goes back to captured states."""
    torch.set_rng_state(noise.torch)
    random.setstate(noise.python)
    np.random.set_state(noise.numpy)  # noqa: NPY002 - the same


def to_plain(noise: Noise) -> dict[str, Any]:
    """The states as plain values for JSON."""
    version, words, gauss = noise.python
    kind, keys, place, has_gauss, cached = noise.numpy
    return {
        "torch": tensor_to_text(noise.torch),
        "python": [version, _packed(words), gauss],
        "numpy": [kind, _packed(keys), int(place), int(has_gauss), float(cached)],
    }


def from_plain(plain: dict[str, Any]) -> Noise:
    """Reads what :func:`to_plain` made."""
    version, words, gauss = plain["python"]
    kind, keys, place, has_gauss, cached = plain["numpy"]
    return Noise(
        tensor_from_text(plain["torch"]),
        (version, tuple(_unpacked(words).tolist()), gauss),
        (kind, _unpacked(keys), place, has_gauss, cached),
    )


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
