"""Ranks that are slower than the others, by their own work."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.sample import Round


class StragglerSequentialState(NamedTuple):
    """Nothing yet."""

    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerSequential:
    """Finds the rank that works slower than its peers, compared with how it used to."""

    RULE: ClassVar[str] = "straggler"
    VARIANT: ClassVar[str] = "sequential"
    WATCHES: ClassVar[tuple[type, ...]] = (Round,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 200

    arl0: float = 1e6
    """Healthy rounds between two false alarms."""

    min_slowdown_ratio: float = 1.10
    """Smallest lasting slowdown worth a word, as a ratio to the other ranks."""

    baseline_rounds: int = 200
    """Rounds that each rank's own offset is learned from."""

    def start(self) -> StragglerSequentialState:
        return StragglerSequentialState()

    def observe(
        self, state: StragglerSequentialState, event: Round
    ) -> tuple[StragglerSequentialState, Breach | None]:
        # Settings and names are final; the rule itself follows.
        return state, None
