"""The reduced gradient of each step: read, left out, clipped, before the update uses it.

Imports torch, so nothing that the monitor imports may import this package.
"""

from slav1.gradients.engine import EngineUpdates
from slav1.gradients.watch import GradientWatch, leaves_out

__all__ = ["EngineUpdates", "GradientWatch", "leaves_out"]
