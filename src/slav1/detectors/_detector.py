"""What every detector is."""

from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from slav1.breach import Breach
from slav1.sample import Audit, Pulse, Replicas, Rerun, Round, Sample, Save, Usage

Event = Sample | Round | Pulse | Save | Audit | Usage | Replicas | Rerun
"""Anything a detector can watch."""

State = TypeVar("State", bound=NamedTuple)


class Detector(Protocol):
    """Frozen settings and a pure function over what was measured.

    A detector knows no tensor, file, clock or process. Its memory is one
    ``NamedTuple`` of plain values (numbers, text, tuples of these, other such
    ``NamedTuple`` values) that :func:`slav1.state.to_plain` can write down.
    """

    RULE: ClassVar[str]
    """Name of the rule in the contract, for example ``loss_variance``."""

    VARIANT: ClassVar[str]
    """Which form of the rule this is: ``literal``, or ``learned`` / ``sequential``."""

    WATCHES: ClassVar[tuple[type, ...]]
    """Kinds of event it is shown. A detector of ``Sample`` or ``Pulse`` is run once
    for every rank, with a memory for each; one of ``Round``, ``Save``, ``Audit`` or
    ``Replicas`` once for the job."""

    NUM_SAMPLES_NEEDED: ClassVar[int]
    """Events it must have seen before its silence means anything."""

    def start(self) -> Any:
        """Returns the memory before anything was seen."""
        ...

    def observe(self, state: Any, event: Any) -> tuple[Any, Breach | None]:
        """Takes in one event; returns the memory after it and a finding, if any."""
        ...


class Selective(Detector, Protocol):
    """A detector that can't use all that it watches: only what it can counts as seen."""

    def is_about(self, event: Any) -> bool:
        """Whether an event holds what the rule looks at."""
        ...


def is_of_job(detector: Detector) -> bool:
    """Whether a detector is run once for the job, and not for every rank."""
    return not {Round, Save, Audit, Replicas}.isdisjoint(detector.WATCHES)
