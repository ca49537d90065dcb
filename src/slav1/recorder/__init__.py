"""The trainer's end: progress words, the ring of steps, the command word."""

from slav1.recorder.block import Block, BlockVersionError
from slav1.recorder.recorder import Recorder
from slav1.recorder.ring import RingReader, read_ring_file

__all__ = ["Block", "BlockVersionError", "Recorder", "RingReader", "read_ring_file"]
