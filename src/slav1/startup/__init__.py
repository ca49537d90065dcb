"""Start-up made bounded: the time-out guard and the health probe."""

from slav1.startup.timeout_guard import TimeoutGuard, enforce_timeout_guard

__all__ = [
    "TimeoutGuard",
    "enforce_timeout_guard",
]
