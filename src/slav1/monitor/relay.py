"""What a rank says, in the words that the coordinator hears."""

from collections.abc import Callable
from typing import Any

import msgspec

from slav1.coordinator import messages as job
from slav1.phase import Phase
from slav1.session import messages as local

_WORDS: dict[type, Callable[[int, Any, Phase], job.FromNode]] = {
    local.Failure: lambda rank, said, phase: job.FirstException(
        rank=rank, step=said.step, phase=phase, error=said.error
    ),
    local.Note: lambda rank, said, _: job.RankNote(
        rank=rank,
        step=said.step,
        message=said.message,
        evidence=said.evidence,
        kind=said.kind,
        rule=said.rule,
    ),
    local.Facts: lambda rank, said, _: job.RankFacts(rank=rank, num_batches=said.num_batches),
    local.Restore: lambda _rank, said, _: job.StateRestored(state=said.state),
    local.AskState: lambda rank, said, _: job.StateAsked(
        rank=rank, step=said.step, number=said.number
    ),
    local.Meet: lambda rank, said, _: job.RankMeets(
        rank=rank,
        topic=said.topic,
        count=said.count,
        limit_s=said.limit_s,
        value=said.value,
    ),
    local.WentBack: lambda rank, said, _: job.RankWentBack(
        rank=rank, to_step=said.to_step, state=said.state
    ),
    local.Want: lambda rank, said, _: job.RankWants(
        rank=rank, reason=said.reason, step=said.step, onset_step=said.onset_step
    ),
    local.Copies: lambda rank, said, _: job.RankReplicas(rank=rank, **msgspec.structs.asdict(said)),
    local.Digests: lambda rank, said, _: job.RankDigests(rank=rank, **msgspec.structs.asdict(said)),
}

RELAYED = tuple(_WORDS)
"""Messages of a rank that are the coordinator's business."""


def relayed(rank: int, message: local.FromRank, phase: Phase) -> job.FromNode:
    """Translates one message of a rank.

    Args:
        rank: Global rank that said it.
        message: One of ``RELAYED``.
        phase: Phase the rank is in.
    """
    return _WORDS[type(message)](rank, message, phase)
