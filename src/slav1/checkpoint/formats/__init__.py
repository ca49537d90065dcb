"""The forms that checkpoints come in, and how each of them is looked at.

A form is one file here and one line in ``FORMATS``.
"""

from slav1.checkpoint.formats.examination import Examination, Finding, NotACheckpointError
from slav1.checkpoint.formats.examine import FORMATS, checkpoints_in, examine

__all__ = [
    "FORMATS",
    "Examination",
    "Finding",
    "NotACheckpointError",
    "checkpoints_in",
    "examine",
]
