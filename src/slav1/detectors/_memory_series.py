"""One series of memory: floors of short blocks, of whole cycles, and evidence of a drift."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from slav1.detectors._ecusum import ecusum

# Steps of the shortest block. All longer ones are put together from these.
BASE_STEPS = 25
# Floors that are kept of one series, and cycles of each kind.
NUM_FLOORS = 64
NUM_CYCLES = 25
# Scales of the sign test, each with blocks twice as long as the one before.
NUM_SCALES = 6
# Share of rising floors in a series that drifts; half of them rise in one that wanders.
RATIOS = (0.65, 0.8, 0.95)
# Values beyond it are no memory.
LARGEST = 1e15
# A cycle gives back what it took if it falls by this share of its rise.
GIVEN_BACK = 0.5

Counts: TypeAlias = tuple[int, ...]
"""Saves, evaluations and epochs so far."""

Floor: TypeAlias = tuple[int, float, int, int, int, int]
"""Step after the block, lowest value in it, the three counts that hold in it, and the step
of the lowest value."""

# Places in a floor.
END_STEP: Final = 0
LOWEST: Final = 1
LOWEST_STEP: Final = 5

Cycle: TypeAlias = tuple[int, float, float, float, int, int, int]
"""Count, floor of its first block, floor of the second half of its last, lowest floor, number
of blocks, step after the last, step with which the first began."""

# Places in a cycle.
COUNT: Final = 0
FIRST: Final = 1
LAST: Final = 2
CYCLE_LOWEST: Final = 3
CYCLE_END_STEP: Final = 5

Scale: TypeAlias = tuple[float, ...]
"""Number of floors, the lowest of a pair's first half, the last floor, and three scores."""


class Series(NamedTuple):
    """What is known about one series."""

    is_open: bool = False
    """Whether a block is open, which the next six are about."""
    begun: int = 0
    floor: float = 0.0
    floor_step: int = 0
    has_late: bool = False
    late_floor: float = 0.0
    """Lowest value in the second half of the block, if it has one."""
    counts: Counts = (0, 0, 0)
    floors: tuple[Floor, ...] = ()
    cycles: tuple[tuple[Cycle, ...], ...] = ((), (), ())
    """By kind, the one in hand last."""
    given_back: tuple[int, ...] = (0, 0, 0)
    """By kind: steps of a cycle whose end frees what it took; 0 where it does not."""
    scales: tuple[Scale, ...] = ()
    num_long: int = 0
    """Blocks in the open long block, which the sign test is made of."""
    long_begun: int = 0
    long_floor: float = 0.0
    grade: int = 0
    """0 if nothing is known against it, 1 if it is suspected, 2 if it is certain."""
    onset: float = 0.0
    """Floor at which the rise in hand began."""
    peak: float = 0.0
    peak_step: int = 0
    """Step at which the floor last stood higher than ever since the onset."""
    cause: int = -1
    """Kind of event that it grows with; -1 if it grows by steps."""


def counts_in(floor: Floor) -> Counts:
    """The counts that hold in a block."""
    return floor[2:5]


def is_reading(value: float | None) -> bool:
    """Whether a value can be an amount of memory."""
    return value is not None and 0.0 <= value <= LARGEST


def changes_nothing(series: Series, step: int, value: float, counts: Counts, base: int) -> bool:
    """Whether a reading belongs to the open block and is not its lowest, as most are."""
    if not series.is_open or value < series.floor or counts != series.counts:
        return False
    begun = series.begun
    if step < begun or step // base != begun // base:
        return False
    is_late = 2 * (step - begun) >= base
    return not is_late or (series.has_late and value >= series.late_floor)


def with_reading(series: Series, step: int, value: float, counts: Counts, base: int) -> Series:
    """Takes in one reading; the block in hand must not be full, see :func:`is_full`."""
    if not series.is_open:
        return series._replace(
            is_open=True, begun=step, floor=value, floor_step=step, has_late=False, counts=counts
        )
    if value < series.floor:
        series = series._replace(floor=value, floor_step=step)
    is_late = 2 * (step - series.begun) >= base
    if is_late and (not series.has_late or value < series.late_floor):
        return series._replace(has_late=True, late_floor=value)
    return series


def is_full(series: Series, step: int, counts: Counts, base: int) -> bool:
    """Whether the open block ends before a reading of ``step``: a multiple of ``base`` steps,
    or an event, lies between."""
    is_past = step // base != series.begun // base
    return series.is_open and (is_past or counts != series.counts)


def closed(series: Series, step: int, *, tolerance: float) -> Series:
    """The series after the open block has ended; its floor is the last of ``floors``.

    Args:
        series: What was known; there is an open block.
        step: Step of the first reading after it.
        tolerance: Change of a floor that means nothing, in the unit of the series.
    """
    saves, evaluations, epochs = series.counts
    floor: Floor = (step, series.floor, saves, evaluations, epochs, series.floor_step)
    last = series.late_floor if series.has_late else series.floor
    cycles, given_back = [], []
    for kind, known in enumerate(series.cycles):
        count = counts_in(floor)[kind]
        if known and known[-1][COUNT] == count:
            cycles.append((*known[:-1], _longer(known[-1], floor, last)))
            given_back.append(series.given_back[kind])
            continue
        new: Cycle = (count, floor[LOWEST], last, floor[LOWEST], 1, step, series.begun)
        cycles.append((*known, new)[-NUM_CYCLES:])
        freed = _given_back(known[-1], floor[LOWEST], tolerance) if known else None
        given_back.append(series.given_back[kind] if freed is None else freed)
    pairs = zip(given_back, series.given_back, strict=True)
    is_new = any(now and not before for now, before in pairs)
    return series._replace(
        is_open=False,
        floors=(*series.floors, floor)[-NUM_FLOORS:],
        cycles=tuple(cycles),
        given_back=tuple(given_back),
        # What rose within such a cycle was no evidence.
        scales=() if is_new else series.scales,
        num_long=0 if is_new else series.num_long,
    )


def _longer(cycle: Cycle, floor: Floor, last: float) -> Cycle:
    """A cycle with one block more."""
    count, first, _, lowest, num, _, begun = cycle
    return (count, first, last, min(lowest, floor[LOWEST]), num + 1, floor[END_STEP], begun)


def _given_back(cycle: Cycle, after: float, tolerance: float) -> int | None:
    """Steps of a cycle that has ended if it gave back what it took, 0 if it did not; None if
    it was too short to tell."""
    _, first, last, _, num, end, begun = cycle
    if num < 2:
        return None
    rise = last - first
    gives_back = rise > 4.0 * tolerance and last - after >= GIVEN_BACK * rise
    return max(1, end - begun) if gives_back else 0


def with_long_block(
    series: Series, begun: int, long_steps: int, *, base: int, tolerance: float
) -> Series:
    """Counts the block that was closed last for the sign test.

    Args:
        series: What is known; at least one floor.
        begun: Step with which that block began.
        long_steps: Steps that a block of the test has at least.
        base: Steps of the blocks that it is put together from.
        tolerance: Change of a floor that does not count as a rise.
    """
    step, value = series.floors[-1][END_STEP], series.floors[-1][LOWEST]
    if series.num_long == 0:
        series = series._replace(long_begun=begun, long_floor=value)
    floor = min(series.long_floor, value)
    num_steps = (step // base - series.long_begun // base) * base
    if num_steps < max(long_steps, *series.given_back):
        return series._replace(num_long=series.num_long + 1, long_floor=floor)
    return series._replace(num_long=0, scales=_pushed(series.scales, floor, tolerance))


def _pushed(scales: tuple[Scale, ...], floor: float, tolerance: float) -> tuple[Scale, ...]:
    """The sign test at all scales after one more floor of the finest."""
    after = list(scales) or [(0.0,) * 6] * NUM_SCALES
    for level, (num, half, last, *before) in enumerate(after):
        scores = tuple(before)
        if num:
            # All scores start at once, so three zeros are as good as none.
            scores = ecusum(scores, floor - last > tolerance, null_ratio=0.5, ratios=RATIOS)
        is_pair = num % 2 == 1
        after[level] = (1.0 + num % 2, floor, floor, *scores)
        if not is_pair:
            break
        floor = min(half, floor)
    return tuple(after)


def evidence(series: Series, long_steps: int, arl0: float) -> float:
    """The highest score of the sign test beside its limit; an alarm from 1 on."""
    highest = 0.0
    for level, scale in enumerate(series.scales):
        blocks = arl0 / (max(long_steps, *series.given_back) * 2.0**level)
        limit = math.log(max(math.e, len(RATIOS) * NUM_SCALES * blocks))
        highest = max(highest, max(scale[3:]) / limit)
    return highest


def restarted(series: Series, step: int) -> Series:
    """The series after steps went back: an open incident stays open, the rest is new."""
    return Series(
        grade=series.grade,
        onset=series.onset,
        peak=series.peak,
        peak_step=step,
        cause=series.cause,
    )


def standing(series: Series) -> tuple[int, float]:
    """Step and height of what a series is judged by: its last floor, or that of the last whole
    cycle where it grows with one, so that no top of a tooth is compared with a floor."""
    cycles = series.cycles[series.cause] if series.cause >= 0 else ()
    if len(cycles) >= 2:
        return cycles[-2][CYCLE_END_STEP], cycles[-2][CYCLE_LOWEST]
    return series.floors[-1][END_STEP], series.floors[-1][LOWEST]


def slope_of(floors: Sequence[Floor]) -> float:
    """Theil-Sen slope of floors, per step; 0 if there are too few.

    Source:
        Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau", JASA
        63(324), 1968.
    """
    slopes = sorted(
        (later[LOWEST] - floor[LOWEST]) / (later[LOWEST_STEP] - floor[LOWEST_STEP])
        for i, floor in enumerate(floors)
        for later in floors[i + 1 :]
        if later[LOWEST_STEP] > floor[LOWEST_STEP]
    )
    if not slopes:
        return 0.0
    middle = len(slopes) // 2
    return slopes[middle] if len(slopes) % 2 else (slopes[middle - 1] + slopes[middle]) / 2.0
