"""One watched training run as a rank sees it: joining, asking, leaving."""

from slav1.session.join import RunSettings, join
from slav1.session.session import Session

__all__ = ["RunSettings", "Session", "join"]
