"""What a rank says, in the words that the coordinator hears."""

from slav1.coordinator import messages as job
from slav1.phase import Phase
from slav1.session import messages as local

RELAYED = (local.Failure, local.Note, local.Facts, local.Restore, local.AskState, local.Meet)
"""Messages of a rank that are the coordinator's business."""


def relayed(rank: int, message: local.FromRank, phase: Phase) -> job.FromNode:
    """Translates one message of a rank.

    Args:
        rank: Global rank that said it.
        message: One of ``RELAYED``.
        phase: Phase the rank is in.

    Raises:
        TypeError: If it is none of them.
    """
    if isinstance(message, local.Failure):
        return job.FirstException(rank=rank, step=message.step, phase=phase, error=message.error)
    if isinstance(message, local.Note):
        return job.RankNote(
            rank=rank,
            step=message.step,
            message=message.message,
            evidence=message.evidence,
            kind=message.kind,
            rule=message.rule,
        )
    if isinstance(message, local.Facts):
        return job.RankFacts(rank=rank, num_batches=message.num_batches)
    if isinstance(message, local.Restore):
        return job.StateRestored(state=message.state)
    if isinstance(message, local.AskState):
        return job.StateAsked(rank=rank, step=message.step, number=message.number)
    if isinstance(message, local.Meet):
        return job.RankMeets(
            rank=rank,
            topic=message.topic,
            count=message.count,
            limit_s=message.limit_s,
            value=message.value,
        )
    raise TypeError(f"a {type(message).__name__} is between the rank and its monitor")
