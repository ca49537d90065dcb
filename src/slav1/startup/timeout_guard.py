"""A time limit for start-up: names the ranks that are missing and ends the process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

from slav1.startup._seconds import positive_seconds
from slav1.startup._watch import Watch

Function = TypeVar("Function", bound=Callable[..., Any])


class TimeoutGuard:
    """A time limit for one phase; made by :func:`enforce_timeout_guard`.

    As it comes it is armed and ends by itself when ``torch.distributed``'s default group
    is up. In a ``with`` statement it bounds the block instead, and as a decorator each
    call of the function.
    """

    def __init__(
        self, *, phase: str, timeout_s: float, rank: int | None, world_size: int | None
    ) -> None:
        self.phase = phase
        """Name of the phase."""
        self.timeout_s = timeout_s
        """How long it may take, in seconds."""
        self._place = {"rank": rank, "world_size": world_size}
        self._is_entered = False
        self._watch = self._arm()

    @property
    def is_armed(self) -> bool:
        """Whether time is being counted."""
        return not self._watch.is_over

    def disarm(self) -> None:
        """Ends the time limit; the process goes on. Harmless if repeated."""
        self._watch.stop()

    def __enter__(self) -> TimeoutGuard:  # noqa: PYI034 - typing.Self needs Python 3.11
        if self._is_entered:
            raise RuntimeError(
                f"The guard of phase '{self.phase}' is entered already; make a second one "
                "with enforce_timeout_guard() to nest."
            )
        if not self._watch.keep():
            self._watch = self._arm()
            self._watch.keep()
        self._is_entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_entered = False
        self.disarm()

    def __call__(self, function: Function) -> Function:
        """Bounds each call of ``function``.

        Raises:
            TypeError: If calling it does not run it: a coroutine or generator function.
        """
        self.disarm()
        is_lazy = (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        )
        if is_lazy or not callable(function):
            raise TypeError(
                f"enforce_timeout_guard('{self.phase}') can decorate plain functions only, got "
                f"{function!r}: a coroutine or generator runs after its call has returned. Put "
                "the with statement inside it."
            )

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            with TimeoutGuard(phase=self.phase, timeout_s=self.timeout_s, **self._place):
                return function(*args, **kwargs)

        return cast("Function", bounded)

    def _arm(self) -> Watch:
        return Watch(phase=self.phase, timeout_s=self.timeout_s, **self._place)


def enforce_timeout_guard(
    phase: str = "ddp_init",
    timeout: float = 120.0,
    *,
    rank: int | None = None,
    world_size: int | None = None,
) -> TimeoutGuard:
    """Bounds start-up: if it takes too long, says who is missing and ends the process.

    Every rank calls it, in the same order. When time runs out, each rank that waits
    prints to stderr the phase, the time, the ranks that have and have not arrived at
    this call, its own Python stack and what to try, and ends with exit code 70. The
    first rank whose time runs out ends all that can be reached through the job's store,
    so all print the same lists. If a C call holds the GIL, a timer in C ends the process
    6 seconds later, with exit code 1 and the stacks only.

    How arrivals are known: through the store at ``MASTER_ADDR:MASTER_PORT``, and on one
    machine without it too, so a missing rank 0, which hosts the store unless
    ``torchrun`` does, is named as well. Ranks of other machines can't be seen until the
    store is up. A rank that runs without this guard counts as not arrived.

    While armed it takes ``faulthandler.dump_traceback_later``'s one timer. Nothing is
    sent to other ranks by collectives, no signal is used, and any thread may call it.

    Args:
        phase: What is bounded; a name for the message. Ranks meet by it.
        timeout: How long it may take, in seconds; above 0, at most a week.
        rank: Global rank, if the launcher does not set ``RANK``.
        world_size: Number of ranks, if the launcher does not set ``WORLD_SIZE``.

    Returns:
        The armed guard. A bare call ends by itself once ``init_process_group`` has
        returned; where none follows, call ``disarm()``. In a ``with`` statement the block
        is bounded, as a decorator each call.

    Raises:
        TypeError: If ``timeout`` is no number or ``phase`` no text.
        ValueError: If ``timeout`` is out of range or ``phase`` is empty.

    Example:
        >>> import time
        >>> from slav1.startup import enforce_timeout_guard
        >>> with enforce_timeout_guard("load_data", timeout=60):
        ...     time.sleep(0.01)
        >>> @enforce_timeout_guard("load_data", timeout=60)
        ... def load():
        ...     return 3
        >>> load()
        3
    """
    if not isinstance(phase, str):
        raise TypeError(
            f"phase must be text, got {type(phase).__name__}; as a decorator write "
            '@enforce_timeout_guard("ddp_init", timeout=120).'
        )
    if not phase or not phase.isprintable():
        raise ValueError(f"phase must be a printable name of at least one letter, got {phase!r}.")
    return TimeoutGuard(
        phase=phase,
        timeout_s=positive_seconds("timeout", timeout),
        rank=rank,
        world_size=world_size,
    )
