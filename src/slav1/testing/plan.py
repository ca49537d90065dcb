"""The faults planned for this process, by code or by ``SLA_INJECT``."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from types import TracebackType

from slav1.testing.fault import Fault
from slav1.testing.faults import Faults

VARIABLE = "SLA_INJECT"

_log = logging.getLogger("slav1.testing")
_plan: list[Fault] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A fault that :func:`inject` planned. Leaving its ``with`` block takes it back."""

    fault: Fault
    """What was planned."""

    def __enter__(self) -> Fault:
        return self.fault

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _plan[:] = [planned for planned in _plan if planned is not self.fault]


def inject(
    kind: str,
    *,
    rank: int | str | None = None,
    step: int | None = None,
    **values: bool | float | str,
) -> Injection:
    """Plans a fault for the trainings that this process starts from now on.

    Works as a plain call, until :func:`clear`, and as a context manager, until the end
    of its block. Processes that start afresh (a spawned rank) do not see it: plan it
    there too, or use ``SLA_INJECT``.

    Args:
        kind: What goes wrong: one of ``slav1.testing.KINDS``.
        rank: Global rank that is hit, or ``"all"``. Without it rank 1, or rank 0 in a
            world of one.
        step: First optimizer step that is hit, from 0.
        **values: The further keys of the kind, as in ``SLA_INJECT``: ``seconds``,
            ``where``, ``steps``, ``every``, ``factor``, ``what``, ``code``, ``attempt``.

    Returns:
        The injection, for use in a ``with`` statement.

    Raises:
        ValueError: If a key or value is not allowed for the kind.

    Example:
        >>> from slav1.testing import inject
        >>> with inject("sleep", rank=0, step=3, seconds=0.5, where="data") as fault:
        ...     print(fault)
        sleep:rank=0,step=3,attempt=0,where=data,seconds=0.5,steps=1
    """
    given = {"rank": rank, "step": step, **values}
    fault = Fault.of(kind, {key: value for key, value in given.items() if value is not None})
    _plan.append(fault)
    return Injection(fault=fault)


def clear() -> None:
    """Takes back every fault that :func:`inject` planned."""
    _plan.clear()


def planned_faults(rank: int, world_size: int, *, attempt: int = 0) -> Faults | None:
    """What is planned for a rank; called by the host adapters when a training starts.

    Faults planned by :func:`inject` win over ``SLA_INJECT``, which is then not read.

    Args:
        rank: Global rank of this process.
        world_size: Number of ranks.
        attempt: How often the job was restarted.

    Returns:
        The faults of this rank, or None if there are none, so that a training without
        faults pays one ``is None``.

    Raises:
        ValueError: If ``SLA_INJECT`` holds something that is no fault.
    """
    planned, source = (tuple(_plan), "inject()") if _plan else (_from_environment(), VARIABLE)
    mine = [
        fault for fault in planned if fault.hits(rank=rank, world_size=world_size, attempt=attempt)
    ]
    if not mine:
        return None
    _log.warning("Rank %d: faults are planned by %s: %s", rank, source, "; ".join(map(str, mine)))
    return Faults(mine, rank=rank)


def _from_environment() -> tuple[Fault, ...]:
    text = os.environ.get(VARIABLE, "")
    try:
        return tuple(Fault.parse(part) for part in text.split(";") if part.strip())
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None
