"""Ranks that make no progress, by fixed limits."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.sample import Pulse, Sample


class HangLiteralState(NamedTuple):
    """Nothing yet."""

    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HangLiteral:
    """Finds ranks that stay in one phase longer than a fixed limit."""

    RULE: ClassVar[str] = "hang"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (
        Sample,
        Pulse,
    )
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

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

    def start(self) -> HangLiteralState:
        return HangLiteralState()

    def observe(
        self, state: HangLiteralState, event: Sample | Pulse
    ) -> tuple[HangLiteralState, Breach | None]:
        # Settings and names are final; the rule itself follows.
        return state, None
