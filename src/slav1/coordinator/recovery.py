"""How long a run takes from a fault to the first step past the one it hit."""

from collections.abc import Iterable
from dataclasses import dataclass

from slav1.ledger import Entry

_LEADS_BACK = ("rollback", "restart", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that the run has to come back from."""

    rule: str
    """Rule that found it."""

    step: int
    """Step that it hit, or at which it was found."""

    began_ns: int
    """When it began, on the wall clock, in nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A run that is past its fault."""

    fault: Fault
    """What it came back from."""

    step: int
    """First step past it that all ranks have made."""

    seconds: float
    """Time from the beginning of the fault to the end of that step."""


class Recovery:
    """Waits for the first step past a fault. Time is passed in."""

    def __init__(self, fault: Fault | None = None) -> None:
        """Starts with what an earlier attempt of the run has not come back from."""
        self._fault = fault

    def begin(self, fault: Fault) -> None:
        """Takes in a fault that is acted on; an earlier one that is still open stays."""
        if self._fault is None:
            self._fault = fault

    def on_step(self, step: int, now_ns: int) -> Recovered | None:
        """Takes in the newest step that all ranks have made since the run went back.

        Args:
            step: Optimizer step, from 0.
            now_ns: Wall clock, in nanoseconds.

        Returns:
            How the run recovered, once, at the first step past the fault.
        """
        fault = self._fault
        if fault is None or step <= fault.step:
            return None
        self._fault = None
        seconds = max(0.0, (now_ns - fault.began_ns) * 1e-9)
        return Recovered(fault=fault, step=step, seconds=seconds)


def unfinished_fault(entries: Iterable[Entry]) -> Fault | None:
    """Finds what a run has not come back from in the attempts so far.

    Args:
        entries: Its ledger.

    Returns:
        The first fault that was acted on since the run last recovered or ended in good
        order; None if there is none, or if nobody knows which step it hit.
    """
    fault: Fault | None = None
    breach: Entry | None = None
    for entry in entries:
        if entry.kind == "breach":
            breach = entry
        elif entry.kind == "decision" and entry.action in _LEADS_BACK:
            fault = fault or _fault_of(breach or entry)
        elif entry.kind == "restored":
            fault = None
    return fault


def _fault_of(entry: Entry) -> Fault | None:
    if entry.step is None or entry.rule is None:
        return None
    silent_s = entry.evidence.get("seconds_since_progress", 0.0)
    known_s = silent_s if isinstance(silent_s, int | float) else 0.0
    return Fault(rule=entry.rule, step=entry.step, began_ns=entry.time_ns - int(known_s * 1e9))
