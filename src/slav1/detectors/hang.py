"""Ranks that make no progress, by limits learned for each phase."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.detectors._hang import (
    RULE,
    Limits,
    Watch,
    check_limits,
    fixed_limit_s,
    judgement,
)
from slav1.detectors._tail import Durations, learn, tail_limit_s, typical_s
from slav1.phase import STEP_PHASES, Phase
from slav1.sample import Pulse, Sample

NUM_NEEDED = 30
SECONDS_PER_DAY = 86_400.0
# Times that the first batch of an epoch may take what the very first took, to be usual.
FIRST_DATA_RATIO = 2.0
# Phases that lie between two steps and are no part of either.
_LONG_PHASES = frozenset({Phase.EVALUATION, Phase.CHECKPOINT})
_LEARNED = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.BETWEEN)


class HangLearnedState(NamedTuple):
    """The pulses of the rank, and how long its phases last."""

    watch: Watch = Watch()
    phases: tuple[Durations, ...] = (Durations(),) * len(_LEARNED)
    """In the order of the phases."""
    had_long_phase: bool = False
    """Whether the step in hand began after an evaluation or a checkpoint."""
    first_data_s: float = 0.0
    """Longest wait for a batch in the first steps of the process, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangLearned:
    """Finds ranks that stay in one phase longer than they ever should.

    Each phase of a step has two limits. Past the learned one, a fit to the tail of its
    own durations, the breach is only logged. Past the hard one it is to be acted on:
    that is ``limit_s``, or ``hard_ratio`` times the typical length of the phase, or the
    learned limit, whichever is longest, so a model with slow steps is never stopped by a
    limit made for fast ones. Until a phase has been seen 30 times there is only the hard
    limit, and before it has been seen at all, that of the first step.

    A loader that starts its workers anew in each epoch takes as long for the first batch of
    each as it took for the very first. A wait for data may last twice that before it is
    logged, and ``hard_ratio`` times that (but no longer than a first step may take) before it
    is hung.

    The first steps of a process, setup, evaluation, checkpoint and teardown have fixed
    limits of their own; no phase switches the watch off. Steps that took longer than
    the hard limit, warm-up steps, and what lies beside an evaluation or a checkpoint are
    not learned from.

    It says that a rank makes no progress, not whose fault that is: the peers of a hung
    rank wait for it in their gradient sync and stall as well.

    Raises:
        ValueError: If a setting is out of range.

    Source:
        Davison and Smith, "Models for Exceedances over High Thresholds", JRSS B 52(3),
        1990.
    """

    RULE: ClassVar[str] = RULE
    VARIANT: ClassVar[str] = "learned"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample, Pulse)
    NUM_SAMPLES_NEEDED: ClassVar[int] = NUM_NEEDED

    limit_s: float = 30.0
    """Longest stay in one phase of a training step, in seconds."""

    first_step_limit_s: float = 600.0
    """The same during the first steps of a process, in seconds."""

    evaluation_limit_s: float = 600.0
    """Longest evaluation without progress, in seconds."""

    checkpoint_limit_s: float = 600.0
    """Longest write of a checkpoint, in seconds."""

    setup_limit_s: float = 600.0
    """Longest stay before the first batch, in seconds."""

    teardown_limit_s: float = 600.0
    """Longest stay after the last step, in seconds."""

    warmup_steps: int = 5
    """Steps of a process that count as its first, in steps."""

    min_limit_s: float = 1.0
    """Smallest learned limit, in seconds."""

    max_limit_s: float = 600.0
    """Largest learned limit, in seconds."""

    false_alarms_per_day: float = 0.1
    """Wanted number of healthy stalls over the learned limit, per day and phase."""

    hard_ratio: float = 5.0
    """How many times its typical length a phase may last before it is hung."""

    def __post_init__(self) -> None:
        check_limits(self)
        if not 0 < self.min_limit_s <= self.max_limit_s:
            raise ValueError(
                "min_limit_s must be above 0 and at most max_limit_s, got "
                f"{self.min_limit_s} and {self.max_limit_s}."
            )
        if not self.false_alarms_per_day > 0:
            raise ValueError(
                f"false_alarms_per_day must be above 0, got {self.false_alarms_per_day}: no "
                "limit is so long that a healthy stall never reaches it."
            )
        if not self.hard_ratio >= 1:
            raise ValueError(f"hard_ratio must be at least 1, got {self.hard_ratio}.")

    def start(self) -> HangLearnedState:
        return HangLearnedState()

    def observe(
        self, state: HangLearnedState, event: Sample | Pulse
    ) -> tuple[HangLearnedState, Breach | None]:
        if isinstance(event, Sample):
            return self._learned(state, event), None
        had_long_phase = state.had_long_phase or event.phase in _LONG_PHASES
        watch, breach = judgement(state.watch, event, self._limits(state, event))
        return state._replace(watch=watch, had_long_phase=had_long_phase), breach

    def _learned(self, state: HangLearnedState, sample: Sample) -> HangLearnedState:
        """Takes in the durations of one step."""
        if sample.is_warmup:
            data_s = sample.data_s or 0.0
            first_data_s = max(state.first_data_s, data_s if math.isfinite(data_s) else 0.0)
            return state._replace(had_long_phase=False, first_data_s=first_data_s)
        lengths_s = _lengths_s(sample)
        if state.had_long_phase:
            lengths_s = (*lengths_s[:-1], None)
        pairs = zip(state.phases, lengths_s, strict=True)
        phases = [
            durations if length_s is None else self._with_length(durations, length_s)
            for durations, length_s in pairs
        ]
        return state._replace(phases=tuple(phases), had_long_phase=False)

    def _with_length(self, durations: Durations, length_s: float) -> Durations:
        is_short = length_s <= self.limit_s
        return (
            learn(durations, length_s)
            if is_short or length_s <= self._hard_s(durations, typical_s(durations))
            else durations
        )

    def _hard_s(self, durations: Durations, usual_s: float) -> float:
        """Past it a step phase is hung, by the fixed limit and the typical length."""
        if durations.num_counted == 0:
            return self.first_step_limit_s
        return max(self.limit_s, self.hard_ratio * usual_s)

    def _limits(self, state: HangLearnedState, pulse: Pulse) -> Limits:
        if pulse.phase not in STEP_PHASES or pulse.num_steps < self.warmup_steps:
            return Limits(hard_s=fixed_limit_s(self, pulse))
        durations = state.phases[_LEARNED.index(pulse.phase)]
        usual_s = typical_s(durations)
        hard_s = self._hard_s(durations, usual_s)
        if pulse.phase is Phase.DATA:
            first_s = min(self.hard_ratio * state.first_data_s, self.first_step_limit_s)
            hard_s = max(hard_s, first_s)
        # Nothing can be said before min_limit_s: the tail need not be fitted.
        if durations.num_counted < NUM_NEEDED or pulse.since_progress_s <= self.min_limit_s:
            return Limits(hard_s=hard_s, typical_s=usual_s)
        num_per_day = SECONDS_PER_DAY / max(sum(map(typical_s, state.phases)), 1e-3)
        limit_s = tail_limit_s(
            durations,
            num_per_day=num_per_day,
            false_alarms_per_day=self.false_alarms_per_day,
        )
        soft_s = min(max(limit_s, self.min_limit_s), self.max_limit_s)
        if pulse.phase is Phase.DATA:
            soft_s = max(soft_s, FIRST_DATA_RATIO * state.first_data_s)
        return Limits(
            hard_s=max(hard_s, soft_s),
            soft_s=soft_s,
            typical_s=usual_s,
            soft_arl0=num_per_day / self.false_alarms_per_day,
        )


def _lengths_s(sample: Sample) -> tuple[float | None, ...]:
    """How long each step phase lasted, in the order of the phases; None if unknown."""
    sync_s = sample.sync_s or 0.0
    backward_s = None if sample.backward_s is None else sample.backward_s + sync_s
    parts = (sample.data_s, sample.forward_s, backward_s, sample.optimizer_s)
    between_s = None
    if sample.step_time_s is not None:
        between_s = sample.step_time_s - sum(part for part in parts if part is not None)
    return (*parts, None if between_s is None else max(0.0, between_s))
