"""Putting an accelerator that exists already under the contract."""

from collections.abc import Mapping
from functools import cache
from types import new_class
from typing import Any

from accelerate import Accelerator  # type: ignore[import-untyped]

from sla_accelerate._wishes import Wishes, listen, wish
from sla_accelerate.accelerator import SLAAccelerator
from slav1.contract import Contract


def attach(
    accelerator: Any,
    contract: str | Contract | None = None,
    run_dir: str | None = None,
    *,
    on_stop: str = "raise",
    skip_bad_batches: bool = True,
    log_figures: bool = False,
) -> Any:
    """Collective. Makes an :class:`SLAAccelerator` of an ``Accelerator`` that exists.

    It stays the same object, and an instance of its class: of a class of the user's own all
    methods are still called. What it has prepared already is watched from now on; if an
    optimizer is among it, all ranks join the run here. A pass over a loader that has begun is
    not seen.

    Done a second time with the same settings it changes nothing.

    Args:
        accelerator: Any ``accelerate.Accelerator``.
        contract: As for :class:`SLAAccelerator`.
        run_dir: The same.
        on_stop: The same.
        skip_bad_batches: The same.
        log_figures: The same.

    Returns:
        The accelerator.

    Raises:
        TypeError: If it is no ``Accelerator``.
        ValueError: If it is attached with other settings, or if methods that the contract
            has to see were replaced on the object.

    Example:
        >>> from accelerate import Accelerator
        >>> accelerator = attach(Accelerator(cpu=True), contract="L1")
        >>> isinstance(accelerator, SLAAccelerator)
        True
    """
    if not isinstance(accelerator, Accelerator):
        raise TypeError(
            f"attach needs an accelerate.Accelerator, got {type(accelerator).__name__}."
        )
    wishes = wish(
        contract,
        run_dir,
        on_stop=on_stop,
        skip_bad_batches=skip_bad_batches,
        log_figures=log_figures,
    )
    if isinstance(accelerator, SLAAccelerator):
        accelerator._sla_wish_again(wishes)  # noqa: SLF001 - of this package
    else:
        _attach(accelerator, wishes, listen())
    return accelerator


def attach_unasked(accelerator: Any, launcher: Mapping[str, str]) -> None:
    """Collective. Attaches one of which the script says nothing; what it says later on wins.

    Args:
        accelerator: Any ``accelerate.Accelerator``.
        launcher: What the launcher said.
    """
    if not isinstance(accelerator, SLAAccelerator):
        _attach(accelerator, wish()._replace(is_unasked=True), launcher)


def _attach(accelerator: Any, wishes: Wishes, launcher: Mapping[str, str]) -> None:
    _check_whole(accelerator)
    before = accelerator.__class__
    accelerator.__class__ = attached(before)
    try:
        accelerator._sla_set_up(wishes, launcher)  # noqa: SLF001 - of this package
        accelerator._sla_take_over()  # noqa: SLF001 - the same
    except BaseException:
        accelerator.__class__ = before
        raise


@cache
def attached(host_class: type) -> type:
    """What an accelerator of this class becomes: one that is both."""
    if host_class is Accelerator:
        return SLAAccelerator

    def fill(content: dict[str, Any]) -> None:
        names = ("__module__", "__qualname__", "__doc__")
        content.update({name: getattr(host_class, name) for name in names})
        # It can't be found by its name, which is that of the user's class.
        content["__reduce__"] = lambda self: (_anew, (host_class,), self.__getstate__())

    return new_class(host_class.__name__, (SLAAccelerator, host_class), exec_body=fill)


def _anew(host_class: type) -> Any:
    """An empty one, to be filled with what was kept of another."""
    made: Any = attached(host_class)
    return made.__new__(made)


def _check_whole(accelerator: Any) -> None:
    """What lies on the object itself hides what its class has."""
    ours = {name for one in SLAAccelerator.__mro__ for name in vars(one) if _is_ours(one)}
    hidden = sorted(ours & vars(accelerator).keys())
    if hidden:
        raise ValueError(
            f"attach can't see calls of {', '.join(hidden)}: replaced on this accelerator "
            "itself. Attach it first and replace them afterwards."
        )


def _is_ours(one: type) -> bool:
    return one.__module__.startswith("sla_accelerate")
