"""Losses and gradients that are NaN or infinite."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.sample import Sample


class NonFiniteState(NamedTuple):
    """Nothing yet."""

    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """Finds steps whose loss or gradient is not a number any more."""

    RULE: ClassVar[str] = "non_finite"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Sample,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

    recovery_steps: int = 5
    """Finite steps in a row that close an incident, in steps."""

    def start(self) -> NonFiniteState:
        return NonFiniteState()

    def observe(self, state: NonFiniteState, event: Sample) -> tuple[NonFiniteState, Breach | None]:
        # Settings and names are final; the rule itself follows.
        return state, None
