"""Where a rank is: the part of training it works on right now."""

from enum import IntEnum


class Phase(IntEnum):
    """One part of the training life cycle, as published by a rank.

    The numbers are part of the ring format; new phases get new numbers.
    """

    SETUP = 0
    """Before the first batch: process group, model, data loaders, sanity check."""

    DATA = 1
    """Waiting for the next batch."""

    FORWARD = 2
    """The training step up to the loss."""

    BACKWARD = 3
    """Gradients, and where the host has one the gradient sync inside it."""

    OPTIMIZER = 4
    """The optimizer's update."""

    BETWEEN = 5
    """After one step and before the next batch: other callbacks, logging, epoch ends."""

    EVALUATION = 6
    """Validation inside training, and what hooks and loops do between two epochs."""

    CHECKPOINT = 7
    """Writing a checkpoint."""

    TEARDOWN = 8
    """After the last step."""

    DONE = 9
    """The rank said goodbye; nothing is expected of it any more."""


STEP_PHASES = frozenset({Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.BETWEEN})
"""Phases every training step passes through."""
