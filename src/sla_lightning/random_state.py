"""The random numbers of a rank: all generators that a training draws from, as plain values."""

import random
from array import array
from collections.abc import Mapping
from typing import Any

import torch

VERSION = 1
"""Version of what :func:`take` returns."""


def take() -> dict[str, Any]:
    """The state of every generator of this rank.

    Returns:
        Only what ``torch.load`` takes back with ``weights_only=True``. Of several devices
        the current one, on which a rank trains.
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "version": VERSION,
        "python": [version, array("I", words).tobytes(), gauss],
        "torch": bytes(torch.get_rng_state().tolist()),
    }
    numpy = _numpy()
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.get_state(legacy=True)
        state["numpy"] = [kind, keys.tobytes(), int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = bytes(torch.cuda.get_rng_state().tolist())
    return state


def put_back(state: Mapping[str, Any]) -> None:
    """Lets every generator go on from :func:`take`.

    Raises:
        ValueError: If the state is of a version this one does not know.
    """
    if state.get("version") != VERSION:
        raise ValueError(
            f"random state has version {state.get('version')!r}, this version knows {VERSION}."
        )
    version, words, gauss = state["python"]
    random.setstate((version, tuple(array("I", words)), gauss))
    torch.set_rng_state(_tensor(state["torch"]))
    numpy = _numpy()
    if numpy is not None and "numpy" in state:
        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.set_state((kind, array("I", keys), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_tensor(state["cuda"]))


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _numpy() -> Any:
    """The global generator of numpy; None where torch runs without it."""
    try:
        from numpy import random as numpy_random
    except ImportError:
        return None
    return numpy_random
