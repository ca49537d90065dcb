"""The random number generators that a training draws from: all of a process, as plain values."""

import hashlib
import random
from array import array
from collections.abc import Mapping
from typing import Any

import torch

VERSION = 1
"""Version of what :func:`take` returns."""

NUM_SEEDS = 1 << 32
"""Seeds that every generator takes."""


class _Ours:
    seed: int | None = None
    """What :func:`seed_all` has set last."""


def take() -> dict[str, Any]:
    """The state of every generator of this process.

    Returns:
        Only what ``torch.load`` takes back with ``weights_only=True``. Of several devices
        the current one, on which a rank trains.
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "version": VERSION,
        "python": [version, array("I", words).tobytes(), gauss],
        "torch": _bytes(torch.get_rng_state()),
    }
    numpy = _numpy()
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.get_state(legacy=True)
        state["numpy"] = [kind, keys.tobytes(), int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = _bytes(torch.cuda.get_rng_state())
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


def digests(state: Mapping[str, Any]) -> dict[str, str]:
    """A short digest of each generator in what :func:`take` returned, by its name.

    Two generators of one kind have the same digest if they draw the same numbers from here on.
    """
    return {
        name: hashlib.blake2b(repr(content).encode(), digest_size=8).hexdigest()
        for name, content in sorted(state.items())
        if name != "version"
    }


def seed_all(seed: int) -> None:
    """Seeds Python, numpy, torch and all its devices.

    Args:
        seed: Any whole number; taken modulo :data:`NUM_SEEDS`.
    """
    seed %= NUM_SEEDS
    _Ours.seed = seed
    torch.manual_seed(seed)
    seed_all_but_torch(seed)


def seed_all_but_torch(seed: int) -> None:
    """Seeds Python and numpy, which a script that seeds torch may have left as they came.

    Args:
        seed: From 0, below :data:`NUM_SEEDS`.
    """
    random.seed(seed)
    numpy = _numpy()
    if numpy is not None:
        numpy.seed(seed)


def script_seed() -> int | None:
    """The seed that the script has given to torch; None if it has given none that every
    generator takes, or :func:`seed_all` has set one since."""
    seed = torch.initial_seed()
    # A process begins with a seed of 64 bits, which is below one time in 2^32.
    return None if seed >= NUM_SEEDS or seed == _Ours.seed else seed


def _bytes(state: torch.Tensor) -> bytes:
    # Without numpy, with which torch need not be installed.
    return bytes(state.tolist())


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _numpy() -> Any:
    """The global generator of numpy; None where torch runs without it."""
    try:
        from numpy import random as numpy_random
    except ImportError:
        return None
    return numpy_random
