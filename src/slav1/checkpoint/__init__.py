"""Checkpoints that are proved before they count: written aside, read back, voted on, kept."""

from slav1.checkpoint._disk import Disk
from slav1.checkpoint._line import Choice, Commit
from slav1.checkpoint.digests import Digest, digest_file
from slav1.checkpoint.errors import (
    CheckpointDamagedError,
    CheckpointError,
    NoGoodCheckpointError,
    SaveFailedError,
    WorldSizeError,
)
from slav1.checkpoint.facts import SaveFacts
from slav1.checkpoint.manifest import Manifest, ManifestError
from slav1.checkpoint.peers import Alone, Peers, PeersMissingError
from slav1.checkpoint.shelf import Shelf, run_identity
from slav1.checkpoint.verify import Problem, Report, verify_path
from slav1.checkpoint.votes import Verdict, Vote, judge_votes

__all__ = [
    "Alone",
    "CheckpointDamagedError",
    "CheckpointError",
    "Choice",
    "Commit",
    "Digest",
    "Disk",
    "Manifest",
    "ManifestError",
    "NoGoodCheckpointError",
    "Peers",
    "PeersMissingError",
    "Problem",
    "Report",
    "SaveFacts",
    "SaveFailedError",
    "Shelf",
    "Verdict",
    "Vote",
    "WorldSizeError",
    "digest_file",
    "judge_votes",
    "run_identity",
    "verify_path",
]
