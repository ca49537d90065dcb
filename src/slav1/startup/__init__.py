"""Start-up made bounded: the time-out guard and the health probe."""

from slav1.startup.health import validate_nccl_health
from slav1.startup.health_report import GroupHealth, HealthProbeError, HealthReport
from slav1.startup.timeout_guard import TimeoutGuard, enforce_timeout_guard

__all__ = [
    "GroupHealth",
    "HealthProbeError",
    "HealthReport",
    "TimeoutGuard",
    "enforce_timeout_guard",
    "validate_nccl_health",
]
