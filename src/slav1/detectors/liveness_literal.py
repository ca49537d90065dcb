"""Ranks that do not answer, by the contract's literal rule."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.sample import Pulse


class LivenessLiteralState(NamedTuple):
    """Nothing yet."""

    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessLiteral:
    """Finds ranks whose availability is too low for many seconds in a row."""

    RULE: ClassVar[str] = "liveness"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Pulse,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 60

    limit_percent: float = 99.95
    """Smallest share of a second in which the rank must answer, in percent."""

    consecutive: int = 60
    """Seconds in a row under the limit that make a breach."""

    def start(self) -> LivenessLiteralState:
        return LivenessLiteralState()

    def observe(
        self, state: LivenessLiteralState, event: Pulse
    ) -> tuple[LivenessLiteralState, Breach | None]:
        # Settings and names are final; the rule itself follows.
        return state, None
