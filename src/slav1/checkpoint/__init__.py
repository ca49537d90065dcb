"""Checkpoints that are proved before they count: written aside, read back, voted on, kept."""

from slav1.checkpoint.errors import (
    CheckpointDamagedError,
    CheckpointError,
    NoGoodCheckpointError,
    SaveFailedError,
    WorldSizeError,
)
from slav1.checkpoint.facts import SaveFacts
from slav1.checkpoint.peers import Alone, Peers, PeersMissingError

__all__ = [
    "Alone",
    "CheckpointDamagedError",
    "CheckpointError",
    "NoGoodCheckpointError",
    "Peers",
    "PeersMissingError",
    "SaveFacts",
    "SaveFailedError",
    "WorldSizeError",
]
