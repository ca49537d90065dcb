"""Fault injection: make a rank hang, die, lag or diverge at a given step."""

from slav1.testing._effects import InjectedFaultError
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
    "clear",
    "inject",
    "planned_faults",
]
