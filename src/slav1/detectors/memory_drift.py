"""Memory that grows and does not come back, by evidence that grows with every block of steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from slav1.breach import Breach
from slav1.detectors._memory_growth import (
    Growth,
    growth_over,
    is_record,
    lasting_growth,
    steady_growth,
    still_to_come,
)
from slav1.detectors._memory_report import Room, found, has_fallen_back, levelled_off
from slav1.detectors._memory_series import (
    BASE_STEPS,
    CYCLE_END_STEP,
    END_STEP,
    LOWEST,
    Floor,
    Series,
    changes_nothing,
    closed,
    evidence,
    is_full,
    restarted,
    standing,
    with_long_block,
    with_reading,
)
from slav1.detectors._memory_state import (
    LARGEST_STEP,
    SERIES,
    MemoryDriftState,
    readings_of,
    room_of,
    timed,
    told,
)
from slav1.sample import Sample, Usage

SUSPECTED, CERTAIN = 1, 2
# Floors that a growth is told over.
_NUM_SHOWN = 40
_NUM_NEAR = 5
# A process is near its ceiling if it reaches it in so many steps.
_NEAR_STEPS = 200
# Share that a series must have grown by, for a suspicion and else: what is much for a process
# of 1 GB is nothing for one of 100 GB.
_SUSPECTED_SHARE, _CERTAIN_SHARE = 0.02, 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDriftSequential:
    """Finds memory, file descriptors and threads that grow without coming back.

    Watched are what tensors hold on the device, what the allocator holds beyond it, the host
    memory of the rank's processes, file descriptors and threads. What counts is the lowest
    value in a block of steps, so what is taken and given back within one is not seen. Two
    tests look at it. Eight blocks (or six whole epochs, evaluations or saves) that rise by
    about the same amount are a breach without evidence enough to act on. Blocks that rise more
    often than by chance, at any of six lengths, and to where they have not been before, are
    one to act on; so is a process that has grown to 95 % of what there is.

    Growth that comes with each save, evaluation or epoch, and not within, is told from growth
    with each step. A series that falls back at the end of an epoch is compared by whole epochs.
    An incident is told once a series and grade, and ends when the series rises no more.

    Raises:
        ValueError: If a setting is out of range.

    Source:
        Shin, Ramdas, Rinaldo, "E-detectors: a nonparametric framework for sequential
        change detection", New England Journal of Statistics in Data Science 2(2), 2023, for
        the evidence; Sen, JASA 63(324), 1968, for the slope.
    """

    RULE: ClassVar[str] = "memory_drift"
    VARIANT: ClassVar[str] = "sequential"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample, Usage)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1_500

    arl0: float = 1e6
    """Healthy steps between two false alarms of one series, at least."""

    block_steps: int = 50
    """Steps whose lowest value is compared with that of the steps before, 4 to 100000; longer
    than a saw-tooth that belongs to no epoch."""

    warmup_steps: int = 500
    """First steps of a process that are no evidence to act on."""

    suspect_after_steps: int = 100
    """First steps of a process that raise no suspicion."""

    tolerance_mib: float = 0.5
    """Rise of a block that means nothing, in MiB; also in descriptors and threads."""

    min_growth_mib: float = 16.0
    """Smallest growth to report, in MiB; also in descriptors and threads."""

    horizon_s: float = 259_200.0
    """A growth that fills what there is only after this time, in seconds, is not reported."""

    near_ceiling_ratio: float = 0.95
    """Share of what there is from which a growth is reported at once, above 0 and at most 1."""

    quiet_steps: int = 400
    """Steps (or three cycles of the kind that it grew with, if that is more) without a new
    height that end an incident."""

    trace_host_steps: int = 0
    """Steps over which ``tracemalloc`` looks for the line of Python code once host memory is
    suspected; 0 for never. It slows Python down several times meanwhile, and sees no tensors."""

    def __post_init__(self) -> None:
        if not self.arl0 >= 100:
            raise ValueError(f"arl0 must be at least 100 steps, got {self.arl0}.")
        if not 4 <= self.block_steps <= 100_000:
            raise ValueError(f"block_steps must be 4 to 100000, got {self.block_steps}.")
        if not 0 < self.near_ceiling_ratio <= 1:
            raise ValueError(
                "near_ceiling_ratio must be above 0 and at most 1, got "
                f"{self.near_ceiling_ratio}: it is a share of the memory that there is."
            )
        for name in ("tolerance_mib", "min_growth_mib", "horizon_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}.")
        for name in ("warmup_steps", "suspect_after_steps", "quiet_steps", "trace_host_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0 steps, got {getattr(self, name)}.")

    def start(self) -> MemoryDriftState:
        return MemoryDriftState()

    def observe(
        self, state: MemoryDriftState, event: Sample | Usage
    ) -> tuple[MemoryDriftState, Breach | None]:
        readings = readings_of(event)
        if (not readings and isinstance(event, Sample)) or not 0 <= event.step <= LARGEST_STEP:
            return state, None
        state, breach = told(state, event), None
        for number, value in readings:
            series, counts, base = state.series[number], state.counts, self._base_steps
            if changes_nothing(series, event.step, value, counts, base):
                continue
            state = self._moved_on(state, number, event)
            series = state.series[number]
            if is_full(series, event.step, counts, base):
                # One finding an event: another series shows itself a block later.
                series, finding = self._block_ends(state, number, event, breach is None)
                breach = breach or finding
            series = with_reading(series, event.step, value, counts, base)
            before, after = state.series[:number], state.series[number + 1 :]
            state = state._replace(series=(*before, series, *after))
        return state, breach

    @property
    def _base_steps(self) -> int:
        return min(BASE_STEPS, self.block_steps)

    def _moved_on(
        self, state: MemoryDriftState, number: int, event: Sample | Usage
    ) -> MemoryDriftState:
        """The memory with the step of an event; a series starts anew where steps went back."""
        state = timed(state, event)
        series, step = state.series[number], event.step
        if not series.is_open or step >= series.begun:
            return state
        first_step = max(0, step - max(0, self.warmup_steps - self.suspect_after_steps))
        before, after = state.series[:number], state.series[number + 1 :]
        return state._replace(
            first_step=first_step, series=(*before, restarted(series, step), *after)
        )

    def _block_ends(
        self, state: MemoryDriftState, number: int, event: Sample | Usage, may_report: bool
    ) -> tuple[Series, Breach | None]:
        series, begun = state.series[number], state.series[number].begun
        series = closed(series, event.step, tolerance=self.tolerance_mib)
        if begun - state.first_step < self.suspect_after_steps:
            return series._replace(floors=()), None
        if begun - state.first_step >= self.warmup_steps:
            series = with_long_block(
                series,
                begun,
                self.block_steps,
                base=self._base_steps,
                tolerance=self.tolerance_mib,
            )
        if not may_report:
            return series, None
        if series.grade:
            series = self._with_peak(series)
            if self._is_over(series):
                return self._recovered(state, number, series, event)
        return self._judged(state, number, series, event)

    def _judged(
        self, state: MemoryDriftState, number: int, series: Series, event: Sample | Usage
    ) -> tuple[Series, Breach | None]:
        room = room_of(state, number, series)
        score = evidence(series, self.block_steps, self.arl0)
        kind, growth = "", None
        if series.grade < CERTAIN and score >= 1.0 and self._goes_on(series, room):
            kind, growth = "drift", lasting_growth(series, series.floors[-_NUM_SHOWN:])
        if series.grade < CERTAIN and growth is None and (near := self._near(series, room)):
            kind, growth = "near_ceiling", near
        if series.grade < SUSPECTED and growth is None:
            kind, growth = "steady_rise", steady_growth(series, self.tolerance_mib)
        if growth is None or not self._matters(growth, room, kind):
            return series, None
        series = series._replace(
            grade=SUSPECTED if kind == "steady_rise" else CERTAIN,
            onset=series.onset if series.grade else growth.start,
            cause=growth.cause,
        )
        peak_step, peak = standing(series)
        series = series._replace(peak=peak, peak_step=peak_step)
        breach = found(event, SERIES[number], kind, growth, room, score=score, arl0=self.arl0)
        return series, breach

    def _goes_on(self, series: Series, room: Room) -> bool:
        """Whether a growth reaches where nothing was before, and does not slow down so much that
        what is still to come fits in."""
        if not is_record(series.floors, self.tolerance_mib):
            return False
        to_come = still_to_come(series.floors)
        if to_come is None:
            return True
        return 0.0 < self.near_ceiling_ratio * room.ceiling <= room.value + to_come

    def _near(self, series: Series, room: Room) -> Growth | None:
        """The growth of a series that has little room left; None if it has."""
        value = series.floors[-1][LOWEST]
        if not room.ceiling > 0.0 or len(series.floors) < _NUM_NEAR:
            return None
        shown = series.floors[-_NUM_SHOWN:]
        is_full = value >= self.near_ceiling_ratio * room.ceiling
        if is_full and self._is_rising(shown):
            return growth_over(series, shown)
        recent = series.floors[-_NUM_NEAR:]
        if all(b[LOWEST] - a[LOWEST] > self.tolerance_mib for a, b in pairwise(recent)):
            growth = growth_over(series, recent)
            if value + _NEAR_STEPS * growth.per_step >= room.ceiling:
                return growth
        return None

    def _is_rising(self, floors: Sequence[Floor]) -> bool:
        """Whether the last floors stand higher than ever, and than those before ``quiet_steps``."""
        step, value = floors[-1][END_STEP], floors[-1][LOWEST]
        before = [floor[LOWEST] for floor in floors if floor[END_STEP] <= step - self.quiet_steps]
        is_higher = not before or value > max(before) + self.tolerance_mib
        return is_higher and is_record(floors, self.tolerance_mib)

    def _matters(self, growth: Growth, room: Room, kind: str) -> bool:
        share = _SUSPECTED_SHARE if kind == "steady_rise" else _CERTAIN_SHARE
        if growth.total < max(self.min_growth_mib, share * growth.start):
            return False
        left_s = room.seconds_left(growth.per_step)
        is_far = left_s is not None and left_s > self.horizon_s
        return growth.per_step > 0.0 and (kind == "near_ceiling" or not is_far)

    def _with_peak(self, series: Series) -> Series:
        step, value = standing(series)
        # Where in a cycle its lowest reading falls is chance.
        tolerance = self.tolerance_mib * (3.0 if series.cause >= 0 else 1.0)
        if value <= series.peak + tolerance:
            return series
        return series._replace(peak=value, peak_step=step)

    def _is_over(self, series: Series) -> bool:
        step = series.floors[-1][END_STEP]
        quiet_steps = self.quiet_steps
        cycles = series.cycles[series.cause] if series.cause >= 0 else ()
        if len(cycles) >= 3:
            # The last one is still in hand.
            quiet_steps = max(
                quiet_steps, 3 * (cycles[-2][CYCLE_END_STEP] - cycles[-3][CYCLE_END_STEP])
            )
        return has_fallen_back(series) or step - series.peak_step >= quiet_steps

    def _recovered(
        self, state: MemoryDriftState, number: int, series: Series, event: Sample | Usage
    ) -> tuple[Series, Breach | None]:
        calm = series._replace(grade=0, scales=(), num_long=0, cause=-1)
        others = state.series[:number] + state.series[number + 1 :]
        if any(each.grade for each in others):
            # The incident is of the rank: it goes on with what still grows.
            return calm, None
        return calm, levelled_off(event, SERIES[number], series)
