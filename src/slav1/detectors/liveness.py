"""Ranks that are gone, stopped, or miss heartbeats."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.sample import Pulse


class LivenessSequentialState(NamedTuple):
    """Nothing yet."""

    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessSequential:
    """Finds dead and stopped processes and ranks that miss too many heartbeats."""

    RULE: ClassVar[str] = "liveness"
    VARIANT: ClassVar[str] = "sequential"
    WATCHES: ClassVar[tuple[type, ...]] = (Pulse,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

    stopped_limit_s: float = 3.0
    """How long a process may be stopped before it is reported, in seconds."""

    miss_ratio: float = 5e-4
    """Share of missed beats in a healthy run."""

    bad_miss_ratio: float = 5e-3
    """Share of missed beats to find."""

    arl0: float = 1e6
    """Healthy beats between two false alarms."""

    def start(self) -> LivenessSequentialState:
        return LivenessSequentialState()

    def observe(
        self, state: LivenessSequentialState, event: Pulse
    ) -> tuple[LivenessSequentialState, Breach | None]:
        # Settings and names are final; the rule itself follows.
        return state, None
