"""What the ranks of one round say together, and which one says something else."""

import math
from statistics import median

from slav1.detectors._cusum import clipped
from slav1.detectors._trend import LARGEST
from slav1.sample import Round

# Share of a rise that one rank alone must explain to be named.
SHARE_OF_RISE = 0.75


def mean_loss(round_: Round) -> float | None:
    """Mean loss of the ranks that know theirs; None if none does or one is not finite."""
    return _mean([sample.loss for sample in round_.samples if sample.loss is not None])


def mean_grad_norm(round_: Round) -> float | None:
    """Mean gradient norm of the ranks, above 0; None if it is unknown or not finite."""
    mean = _mean([s.grad_norm for s in round_.samples if s.grad_norm is not None])
    return mean if mean is not None and mean > 0.0 else None


def mean_density(round_: Round) -> float | None:
    """Mean share of the gradient that is not zero, from 0 to 1; None if it is unknown."""
    mean = _mean([s.zero_share for s in round_.samples if s.zero_share is not None])
    return None if mean is None else 1.0 - min(1.0, max(0.0, mean))


def lead(round_: Round) -> float:
    """How far the highest loss of a round lies above the mean of the others; 0 if that is not
    known."""
    losses = [sample.loss for sample in round_.samples if sample.loss is not None]
    if len(losses) < 2:
        return 0.0
    highest = max(losses)
    above = highest - (sum(losses) - highest) / (len(losses) - 1)
    return clipped(above, LARGEST) if math.isfinite(above) else 0.0


def rank_standing_out(round_: Round, rise: float, *, usual_lead: float = 0.0) -> int | None:
    """The one rank whose loss explains a rise of the mean loss; None if no single one does.

    Args:
        round_: All ranks.
        rise: Of their mean.
        usual_lead: What :func:`lead` gives in other rounds, as where a rank has harder data.
    """
    losses = {s.rank: clipped(s.loss, LARGEST) for s in round_.samples if s.loss is not None}
    if len(losses) < 2:
        return None
    rank = max(losses, key=lambda each: losses[each])
    others = median(loss for each, loss in losses.items() if each != rank)
    own_share = (losses[rank] - others - usual_lead) / len(losses)
    return rank if own_share >= SHARE_OF_RISE * rise > 0.0 else None


def batches(round_: Round) -> list[int]:
    """Batch numbers of the round, without repetition; at most eight."""
    known = {sample.batch for sample in round_.samples if sample.batch is not None}
    return sorted(known)[:8]


def _mean(values: list[float]) -> float | None:
    if not values:
        return None
    mean = sum(values) / len(values)
    if math.isfinite(mean) and abs(mean) <= LARGEST:
        return mean
    # Values that are finite each may still have a sum that is not.
    if not all(map(math.isfinite, values)):
        return None
    return sum([clipped(value, LARGEST) for value in values]) / len(values)
