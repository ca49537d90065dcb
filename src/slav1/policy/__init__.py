"""From a breach to what is done about it."""

from slav1.policy.answer import Answer, overruled
from slav1.policy.error import PolicyError
from slav1.policy.question import Circumstances, question
from slav1.policy.table import Verdict, available, judge

__all__ = [
    "Answer",
    "Circumstances",
    "PolicyError",
    "Verdict",
    "available",
    "judge",
    "overruled",
    "question",
]
