"""How long something usually takes, and how long it never should."""

import math
from bisect import bisect_left
from typing import NamedTuple

# Durations are counted in bins that grow by this factor; a learned limit is a few
# percent exact at best, so finer ones would only cost time.
BIN_RATIO = 1.05
_LOG_BIN = math.log(BIN_RATIO)
# Shortest and longest duration that are told apart, in seconds. They bound the memory.
SHORTEST_S, LONGEST_S = 1e-6, 1e6
# Durations remembered; past it all counts are halved, so that old ones fade.
MAX_COUNTED = 200_000
# Durations that a tail is fitted to, as a share of all and at least. With twice the share
# the ordinary noise of 200 ms steps gets into it, and with it false alarms.
TAIL_RATIO = 5e-4
MIN_EXCESSES = 10


class Durations(NamedTuple):
    """A histogram of durations over logarithmic bins, shortest first."""

    bins: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    num_counted: int = 0


def learn(durations: Durations, duration_s: float) -> Durations:
    """Takes in one duration, in seconds; not a number and negative ones are ignored."""
    if not duration_s >= 0.0:
        return durations
    # Plain comparisons: this runs five times a step and rank.
    if duration_s < SHORTEST_S:
        duration_s = SHORTEST_S
    elif duration_s > LONGEST_S:
        duration_s = LONGEST_S
    number = math.ceil(math.log(duration_s) / _LOG_BIN)
    bins, counts, num_counted = durations
    place = bisect_left(bins, number)
    if place < len(bins) and bins[place] == number:
        counts = (*counts[:place], counts[place] + 1, *counts[place + 1 :])
    else:
        bins = (*bins[:place], number, *bins[place:])
        counts = (*counts[:place], 1, *counts[place:])
    after = Durations(bins, counts, num_counted + 1)
    return after if after.num_counted <= MAX_COUNTED else _halved(after)


def typical_s(durations: Durations) -> float:
    """The median, in seconds, at most one bin too long; 0 if nothing was learned."""
    below, half = 0, durations.num_counted / 2
    for place, count in enumerate(durations.counts):
        below += count
        if below >= half:
            return _longest_s(durations.bins[place])
    return 0.0


def tail_limit_s(durations: Durations, *, num_per_day: float, false_alarms_per_day: float) -> float:
    """How long a healthy one lasts at most, but for a wanted rate of exceptions.

    Peaks over threshold with an exponential tail. The threshold is the 99.95 % quantile,
    or the one that ten durations exceed while there are fewer than 20,000. The mean
    excess is fitted with the longest tenth (at least two) taken as no longer than the
    next, so one compilation among them does not move it, and one standard error is
    added. While few were learned the real rate can be ten times the wanted one.

    Args:
        durations: What was learned; at least 12 durations.
        num_per_day: How often such a duration comes up, per day.
        false_alarms_per_day: Wanted number of healthy ones over the limit, per day.

    Returns:
        The limit in seconds.

    Source:
        Davison and Smith, "Models for Exceedances over High Thresholds", JRSS B 52(3),
        1990; Epstein and Sobel, "Life Testing", JASA 48(263), 1953, for the censored
        mean.
    """
    num_excesses = max(MIN_EXCESSES, int(TAIL_RATIO * durations.num_counted))
    num_trimmed = max(2, num_excesses // 10)
    longest = _longest(durations, num_excesses + 1)
    threshold_s = longest[-1]
    kept = [each - threshold_s for each in longest[num_trimmed:-1]]
    total_s = sum(kept) + num_trimmed * kept[0]
    # Within one bin nothing can be told apart: no excess is believed to be shorter.
    mean_excess_s = max(total_s / len(kept), threshold_s * (BIN_RATIO - 1.0))
    careful_s = mean_excess_s * (1.0 + 1.0 / math.sqrt(len(kept)))
    num_over = num_per_day * num_excesses / durations.num_counted
    return threshold_s + careful_s * max(0.0, math.log(num_over / false_alarms_per_day))


def _longest_s(number: int) -> float:
    return math.exp(number * _LOG_BIN)


def _longest(durations: Durations, wanted: int) -> list[float]:
    """The ``wanted`` longest durations in seconds, longest first."""
    found: list[float] = []
    for number, count in zip(reversed(durations.bins), reversed(durations.counts), strict=True):
        found.extend([_longest_s(number)] * min(count, wanted - len(found)))
        if len(found) == wanted:
            break
    return found


def _halved(durations: Durations) -> Durations:
    """Every second duration, counted from the longest, so that the tail keeps its shape."""
    kept: list[tuple[int, int]] = []
    carry = 0
    for number, count in zip(reversed(durations.bins), reversed(durations.counts), strict=True):
        half, carry = divmod(count + carry, 2)
        if half:
            kept.append((number, half))
    kept.reverse()
    return Durations(
        tuple(number for number, _ in kept),
        tuple(count for _, count in kept),
        sum(count for _, count in kept),
    )
