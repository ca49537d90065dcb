"""Ranks that make no progress, by limits learned for each phase."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.sample import Pulse, Sample


class HangLearnedState(NamedTuple):
    """Nothing yet."""

    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HangLearned:
    """Finds ranks that stay in one phase longer than they ever should."""

    RULE: ClassVar[str] = "hang"
    VARIANT: ClassVar[str] = "learned"
    WATCHES: ClassVar[tuple[type, ...]] = (
        Sample,
        Pulse,
    )
    NUM_SAMPLES_NEEDED: ClassVar[int] = 30

    limit_s: float = 30.0
    """Longest stay in one phase of a training step, in seconds."""

    first_step_limit_s: float = 600.0
    """The same during the first steps of a process, in seconds."""

    evaluation_limit_s: float = 600.0
    """Longest stay in evaluation without progress, in seconds."""

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
    """Wanted number of early warnings in a healthy run, per day and phase."""

    hard_ratio: float = 5.0
    """How many times its typical length a phase may last before training is stopped, if that is longer than limit_s."""

    def start(self) -> HangLearnedState:
        return HangLearnedState()

    def observe(
        self, state: HangLearnedState, event: Sample | Pulse
    ) -> tuple[HangLearnedState, Breach | None]:
        # Settings and names are final; the rule itself follows.
        return state, None
