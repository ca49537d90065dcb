"""Whether memory rises at one place of each cycle: some steps after a save, say, as where what is
written in the background stays."""

from collections.abc import Sequence
from itertools import pairwise

from slav1.detectors._memory_series import LOWEST, Floor, counts_in

# Rises within whole cycles that it takes to tell one place from all.
NUM_RISES_NEEDED = 12
NUM_CYCLES_NEEDED = 2
# Cycles of at least so many rises may have it on the border of two.
NUM_FINE = 4
# Share of the cycles that have most of their rise there.
AGREEING = 0.8


def share_in_place(floors: Sequence[Floor], kind: int) -> float:
    """Share of a growth that comes at the same place of each whole cycle.

    Args:
        floors: Floors that follow each other.
        kind: Kind of event that cycles begin with.

    Returns:
        0 also if there are too few floors to tell, or cycles don't agree.
    """
    cycles = _rises_by_cycle(floors, kind)[1:-1]
    num = min(map(len, cycles), default=0)
    total = sum(map(sum, cycles))
    if num < 2 or len(cycles) < NUM_CYCLES_NEEDED or len(cycles) * num < NUM_RISES_NEEDED:
        return 0.0
    width = 2 if num >= NUM_FINE else 1
    at_places = [
        [sum(cycle[place : place + width]) for cycle in cycles]
        for place in range(max(map(len, cycles)))
    ]
    best = max(at_places, key=sum)
    pairs = zip(best, cycles, strict=True)
    num_agreeing = sum(1 for rise, cycle in pairs if 2.0 * rise > sum(cycle))
    if total <= 0.0 or num_agreeing < AGREEING * len(cycles):
        return 0.0
    return sum(best) / total


def _rises_by_cycle(floors: Sequence[Floor], kind: int) -> list[list[float]]:
    """Rises from each floor to the next, by the cycle of the later one."""
    cycles: list[list[float]] = [[]]
    for before, floor in pairwise(floors):
        if counts_in(before)[kind] != counts_in(floor)[kind]:
            cycles.append([])
        cycles[-1].append(floor[LOWEST] - before[LOWEST])
    return cycles
