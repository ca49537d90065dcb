"""Ranks that make no progress, by fixed limits."""

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
from slav1.sample import Pulse, Sample


class HangLiteralState(NamedTuple):
    """The pulses of the rank."""

    watch: Watch = Watch()


@dataclass(frozen=True, slots=True, kw_only=True)
class HangLiteral:
    """Finds ranks that stay in one phase longer than a fixed limit.

    It says that a rank makes no progress, not whose fault that is: the peers of a hung
    rank wait for it in their gradient sync and stall as well.

    Raises:
        ValueError: If a setting is out of range.
    """

    RULE: ClassVar[str] = RULE
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample, Pulse)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

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

    def __post_init__(self) -> None:
        check_limits(self)

    def start(self) -> HangLiteralState:
        return HangLiteralState()

    def observe(
        self, state: HangLiteralState, event: Sample | Pulse
    ) -> tuple[HangLiteralState, Breach | None]:
        if isinstance(event, Sample):
            return state, None
        limits = Limits(hard_s=fixed_limit_s(self, event))
        watch, breach = judgement(state.watch, event, limits)
        return HangLiteralState(watch), breach
