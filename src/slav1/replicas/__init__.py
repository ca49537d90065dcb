"""Copies of tensors that several ranks hold: found, and compared by their bits; and
micro-batches that are run twice.

Imports torch, so nothing that the monitor imports may import this package.
"""

from slav1.replicas.find import Copy, Found, find_copies, trained
from slav1.replicas.hashing import Digester, Workspace
from slav1.replicas.microbatches import MicrobatchReplay, Replayed
from slav1.replicas.step_replay import Roots, StepReplay, replay_for
from slav1.replicas.watch import ReplicaWatch

__all__ = [
    "Copy",
    "Digester",
    "Found",
    "MicrobatchReplay",
    "Replayed",
    "ReplicaWatch",
    "Roots",
    "StepReplay",
    "Workspace",
    "find_copies",
    "replay_for",
    "trained",
]
