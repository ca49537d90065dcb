"""From a breach to what is done about it."""

from slav1.policy.table import Verdict, available, judge

__all__ = ["Verdict", "available", "judge"]
