"""How long a run takes from a fault to the first step past the one it hit."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slav1.breach import Breach
from slav1.ledger import Entry, read_ledger
from slav1.verdict import RECOVERY_RULE

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
        """The run has gone back because of a fault; an earlier one that is still open
        stays."""
        if self._fault is None:
            self._fault = fault

    def on_steps(self, before: int, newest: int, now_ns: int) -> Recovered | None:
        """Takes in what all ranks have made since the run went back.

        Args:
            before: Newest optimizer step so far, from 0; -1 if none.
            newest: Newest one now, later than ``before``.
            now_ns: Wall clock, in nanoseconds.

        Returns:
            How the run recovered, once, at the first step past the fault.
        """
        fault = self._fault
        if fault is None or newest <= fault.step:
            return None
        self._fault = None
        step = max(before, fault.step) + 1
        seconds = max(0.0, (now_ns - fault.began_ns) * 1e-9)
        return Recovered(fault=fault, step=step, seconds=seconds)


def earlier_fault(ledger: Path) -> Fault | None:
    """What earlier starts of a run have not come back from; None if there is no ledger."""
    try:
        return unfinished_fault(read_ledger(ledger))
    except OSError:
        return None


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
        elif entry.rule == RECOVERY_RULE:
            fault = None
    return fault


def _fault_of(entry: Entry) -> Fault | None:
    if entry.step is None or entry.rule is None:
        return None
    return Fault(
        rule=entry.rule,
        step=entry.step,
        began_ns=entry.time_ns - _silent_ns(entry.evidence.get("seconds_since_progress")),
    )


def fault_of(breach: Breach, now_ns: int) -> Fault | None:
    """What a breach that has just been found says about its fault; None if no step."""
    if breach.step is None:
        return None
    silent_ns = _silent_ns(breach.evidence.get("seconds_since_progress"))
    return Fault(rule=breach.rule, step=breach.step, began_ns=now_ns - silent_ns)


def _silent_ns(seconds: object) -> int:
    """Time without progress before something was found: the fault is as old."""
    return int(seconds * 1e9) if isinstance(seconds, int | float) else 0
