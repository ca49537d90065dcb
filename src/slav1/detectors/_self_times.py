"""How long each rank works by itself, beside its peers and beside how it used to."""

import math
from statistics import median
from typing import NamedTuple

from slav1.detectors._cusum import clipped
from slav1.sample import Round, Sample

# Most that one round may say about a rank, as a logarithm of a ratio: 1.42 times.
RATIO_CLIP = 0.35
# Rounds over which the offset of a healthy rank is averaged once it is known.
OFFSET_MEMORY = 1000
EFFECT_GAIN = 0.02
PRESENT_GAIN = 0.2
PARTS = ("data", "forward", "backward", "optimizer", "sync")
"""What a step is made of; the last one is waiting, the others are the rank's own work."""


class RankMemory(NamedTuple):
    """What is known about one rank."""

    rank: int = -1
    offset: float = 0.0
    """Usual logarithm of its self time over that of the typical rank."""
    effect: float = 0.0
    """Mean of the same over about the last 50 rounds, without the offset."""
    scores: tuple[float, ...] = ()
    """Evidence that it is the slowest too often."""
    usual_s: tuple[float, ...] = (0.0,) * len(PARTS)
    """Usual length of each of ``PARTS``, in seconds."""
    present_s: tuple[float, ...] = (0.0,) * len(PARTS)
    """The same over about the last five rounds."""
    is_slow: bool = False
    """Whether an incident of it is open."""


def log_ratios(round_: Round) -> list[float] | None:
    """Logarithm of each rank's self time over that of the typical rank, clipped.

    The typical rank is the median one; of two ranks, the other one.

    Returns:
        One number a rank, in the order of the samples; None if a self time is unknown,
        not above 0, or spoilt by warming up.
    """
    logs: list[float] = []
    for sample in round_.samples:
        self_s = sample.self_time_s
        if sample.is_warmup or self_s is None or not 0.0 < self_s < math.inf:
            return None
        logs.append(math.log(self_s))
    if len(logs) == 2:
        distance = clipped(logs[0] - logs[1], RATIO_CLIP)
        return [distance, -distance]
    middle = median(logs)
    return [clipped(each - middle, RATIO_CLIP) for each in logs]


def after_round(
    memory: RankMemory, sample: Sample, ratio: float, *, offset_gain: float
) -> RankMemory:
    """A rank after one round.

    Args:
        memory: What was known.
        sample: What the rank measured.
        ratio: Its number from :func:`log_ratios`.
        offset_gain: Weight of this round in what is usual; 0 to leave it alone.
    """
    parts_s = _parts_s(sample)
    offset, usual_s = memory.offset, memory.usual_s
    if offset_gain > 0.0:
        offset += offset_gain * (ratio - offset)
        usual_s = _moved(usual_s, parts_s, offset_gain)
    return RankMemory(
        memory.rank,
        offset,
        memory.effect + EFFECT_GAIN * (ratio - offset - memory.effect),
        memory.scores,
        usual_s,
        _moved(memory.present_s, parts_s, PRESENT_GAIN),
        memory.is_slow,
    )


def slowdown_ratio(memory: RankMemory) -> float:
    """How many times longer the rank works by itself now than it used to."""
    usual_s, present_s = sum(memory.usual_s[:-1]), sum(memory.present_s[:-1])
    return present_s / usual_s if usual_s > 0.0 else 1.0


def growth_s(memory: RankMemory) -> dict[str, float]:
    """How much longer than usual each part takes now, in seconds."""
    pairs = zip(PARTS, memory.present_s, memory.usual_s, strict=True)
    return {part: now_s - usual_s for part, now_s, usual_s in pairs}


def _parts_s(sample: Sample) -> tuple[float, ...]:
    return (
        sample.data_s or 0.0,
        sample.forward_s or 0.0,
        sample.backward_s or 0.0,
        sample.optimizer_s or 0.0,
        sample.sync_s or 0.0,
    )


def _moved(means: tuple[float, ...], values: tuple[float, ...], gain: float) -> tuple[float, ...]:
    # One by one: this runs twice for each rank of each round.
    data, forward, backward, optimizer, sync = means
    return (
        data + gain * (values[0] - data),
        forward + gain * (values[1] - forward),
        backward + gain * (values[2] - backward),
        optimizer + gain * (values[3] - optimizer),
        sync + gain * (values[4] - sync),
    )
