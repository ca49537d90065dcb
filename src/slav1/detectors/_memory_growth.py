"""Whether floors of memory rise steadily, and with what: steps, saves, evaluations, epochs."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from slav1.detectors._memory_places import share_in_place
from slav1.detectors._memory_series import (
    BASE_STEPS,
    COUNT,
    CYCLE_END_STEP,
    CYCLE_LOWEST,
    FIRST,
    LAST,
    LOWEST,
    LOWEST_STEP,
    Cycle,
    Floor,
    Series,
    counts_in,
    slope_of,
)

# Rises in a row that make a suspicion: of blocks, and of whole cycles.
NUM_RISES = 8
NUM_CYCLE_RISES = 6
# Blocks that are taken together for one of those rises.
STRIDES = (1, 2, 4)
# The rises are of one size: none is under or over the middle one by more than this ratio.
EVENNESS = 1.8
# The last third rises by at least this share of the first: a warm-up slows down.
LASTING = 0.8
# And it has not risen faster than this multiple of it just before.
MAX_SLOWING = 1.3
# A growth slows down if its second half is under this share of its first.
SLOWING = 0.7
# Cycles at the start of a process that are no evidence.
NUM_FIRST_CYCLES = 2
# Share of a growth that comes with one kind of event, for it to be the cause.
SHARE_OF_EVENTS = 0.7
NUM_EVENTS_NEEDED = 3

STEPS = -1
KINDS = ("save", "evaluation", "epoch")


class Growth(NamedTuple):
    """How a series has grown."""

    since_step: int
    to_step: int
    start: float
    """Floor at which it began."""
    end: float
    cause: int
    """Kind of event it grows with; ``STEPS`` if it grows by steps."""
    also: tuple[int, ...]
    """Kinds of event that can't be told from the cause: they come together."""
    num_events: int
    per_event: float
    """Middle of the rises from one such cycle to the next."""
    per_step: float

    @property
    def total(self) -> float:
        return self.end - self.start

    @property
    def num_steps(self) -> int:
        return self.to_step - self.since_step


def steady_growth(series: Series, tolerance: float) -> Growth | None:
    """The growth of a series whose last floors all rise, and evenly; None if they don't."""
    for stride in STRIDES:
        floors = series.floors[-(NUM_RISES + 1) * stride :]
        if len(floors) < (NUM_RISES + 1) * stride or not _holds_cycles(floors, series.given_back):
            continue
        if floors[-1][LOWEST] <= floors[0][LOWEST]:
            continue
        lowest = [
            min(floors[i : i + stride], key=lambda floor: floor[LOWEST])
            for i in range(0, len(floors), stride)
        ]
        # By step, because readings come when they may: a block's lowest is early in it.
        rises = [_rate(a, b) * stride * BASE_STEPS for a, b in pairwise(lowest)]
        before = series.floors[-2 * len(floors) : -len(floors)]
        if _is_steady(rises, tolerance) and not _slows_down(before, floors):
            return growth_over(series, floors)
    for kind in range(len(KINDS)):
        cycles = _rising_cycles(series.cycles[kind], tolerance)
        if cycles:
            return _growth_over_cycles(series, cycles)
    return None


def _slows_down(before: Sequence[Floor], floors: Sequence[Floor]) -> bool:
    """Whether a series rose faster before, as in the last part of a warm-up."""
    if len(before) < 4:
        return False
    return _rate(before[0], floors[0]) > MAX_SLOWING * _rate(floors[0], floors[-1])


def _rate(floor: Floor, later: Floor) -> float:
    """Rise from one floor to a later one, per step."""
    return (later[LOWEST] - floor[LOWEST]) / max(1, later[LOWEST_STEP] - floor[LOWEST_STEP])


def still_to_come(floors: Sequence[Floor]) -> float | None:
    """What a growth that slows down, as a filling cache does, will still come to if it goes on
    slowing down; None if it does not."""
    middle = len(floors) // 2
    before, now = slope_of(floors[: middle + 1]), slope_of(floors[middle:])
    if not 0.0 < now < SLOWING * before:
        return None
    ratio = now / before
    return now * (floors[-1][LOWEST_STEP] - floors[middle][LOWEST_STEP]) * ratio / (1.0 - ratio)


def growth_over(series: Series, floors: Sequence[Floor]) -> Growth:
    """The growth over some floors that follow each other."""
    first, last = floors[0], floors[-1]
    growth = _growth(
        series,
        since_step=first[LOWEST_STEP],
        start=first[LOWEST],
        to_step=last[LOWEST_STEP],
        end=last[LOWEST],
    )
    return growth._replace(per_step=slope_of(floors))


def lasting_growth(series: Series, floors: Sequence[Floor]) -> Growth:
    """The growth up to now, by whole cycles where those give back what they take: what rises
    within one does not last."""
    known = [kind for kind, steps in enumerate(series.given_back) if steps]
    for kind in sorted(known, key=lambda kind: -series.given_back[kind]):
        whole = [cycle for cycle in series.cycles[kind][:-1] if cycle[COUNT] >= NUM_FIRST_CYCLES]
        if len(whole) > NUM_EVENTS_NEEDED:
            return _growth_over_cycles(series, whole)
    return growth_over(series, floors)


def _growth_over_cycles(series: Series, cycles: Sequence[Cycle]) -> Growth:
    first, last = cycles[0], cycles[-1]
    return _growth(
        series,
        since_step=first[CYCLE_END_STEP],
        start=first[CYCLE_LOWEST],
        to_step=last[CYCLE_END_STEP],
        end=last[CYCLE_LOWEST],
    )


def _growth(series: Series, *, since_step: int, start: float, to_step: int, end: float) -> Growth:
    per_step = (end - start) / max(1, to_step - since_step)
    growth = Growth(since_step, to_step, start, end, STEPS, (), 0, 0.0, per_step)
    windows = [
        [cycle for cycle in cycles if since_step <= cycle[CYCLE_END_STEP] <= to_step]
        for cycles in series.cycles
    ]
    has_events = [len(window) > NUM_EVENTS_NEEDED for window in windows]
    shares = [
        # What rises within such a cycle does not last: only its floor does.
        1.0 if series.given_back[kind] and has_events[kind] else _share_of_events(window)
        for kind, window in enumerate(windows)
    ]
    if max(shares) < SHARE_OF_EVENTS:
        shares = [
            share_in_place(series.floors, kind) if has_events[kind] else 0.0
            for kind in range(len(KINDS))
        ]
    if max(shares) < SHARE_OF_EVENTS:
        return growth
    # Where kinds of event come together, the longest cycle is the one to name.
    together = [kind for kind, share in enumerate(shares) if share >= max(shares) - 0.05]
    cause = min(together, key=lambda kind: (len(windows[kind]), -kind))
    also = [k for k in together if k != cause and len(windows[k]) == len(windows[cause])]
    window = windows[cause]
    return growth._replace(
        cause=cause,
        also=tuple(also),
        num_events=window[-1][COUNT] - window[0][COUNT],
        per_event=median(_rises(window)),
    )


def _share_of_events(window: Sequence[Cycle]) -> float:
    """Share of the growth over some cycles that came between them, and not within."""
    if len(window) <= NUM_EVENTS_NEEDED:
        return 0.0
    within = sum(cycle[LAST] - cycle[FIRST] for cycle in window)
    total = window[-1][LAST] - window[0][FIRST]
    return 1.0 - within / total if total > 0.0 else 0.0


def _rises(cycles: Sequence[Cycle]) -> list[float]:
    """From each cycle to the next, by the number of events between."""
    return [
        (later[CYCLE_LOWEST] - before[CYCLE_LOWEST]) / max(1, later[COUNT] - before[COUNT])
        for before, later in pairwise(cycles)
    ]


def _holds_cycles(floors: Sequence[Floor], given_back: Sequence[int]) -> bool:
    """Whether floors go past the end of each kind of cycle that gave memory back before."""
    return all(
        counts_in(floors[-1])[kind] > counts_in(floors[0])[kind]
        for kind, steps in enumerate(given_back)
        if steps
    )


def _rising_cycles(cycles: Sequence[Cycle], tolerance: float) -> Sequence[Cycle]:
    """The whole cycles up to now whose floors rise one after the other, if steadily."""
    whole = [cycle for cycle in cycles[:-1] if cycle[COUNT] >= NUM_FIRST_CYCLES]
    if len(whole) <= NUM_CYCLE_RISES:
        return ()
    rises = _rises(whole)
    if not _is_steady(rises[-NUM_CYCLE_RISES:], tolerance):
        return ()
    num = NUM_CYCLE_RISES
    while num < len(rises) and rises[-num - 1] > tolerance:
        num += 1
    return whole[-num - 1 :]


def _is_steady(rises: Sequence[float], tolerance: float) -> bool:
    lowest = min(rises)
    if lowest <= tolerance:
        return False
    middle, third = median(rises), (len(rises) + 1) // 3
    is_even = middle <= EVENNESS * lowest and max(rises) <= EVENNESS * middle
    return is_even and sum(rises[-third:]) >= LASTING * sum(rises[:third])


def is_record(floors: Sequence[Floor], tolerance: float) -> bool:
    """Whether the last floors stand above all that were before them in the first half.

    A saw-tooth rises in most of its blocks as well, but to where it has been before.
    """
    half = len(floors) // 2
    if half < 2:
        return False
    lowest_now = min(floor[LOWEST] for floor in floors[-2:])
    return lowest_now > max(floor[LOWEST] for floor in floors[:half]) + tolerance
