"""For tests: faults at a given rank and step, and ranks that are threads."""

from slav1.testing._effects import InjectedFaultError
from slav1.testing._peers import ThreadPeers, run_ranks
from slav1.testing.fault import KINDS, WHERE, Fault
from slav1.testing.faults import Faults
from slav1.testing.plan import Injection, clear, inject, planned_faults

__all__ = [
    "KINDS",
    "WHERE",
    "Fault",
    "Faults",
    "InjectedFaultError",
    "Injection",
    "ThreadPeers",
    "clear",
    "inject",
    "planned_faults",
    "run_ranks",
]
