"""Variance of the loss, by the contract's literal rule."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.sample import Round


class LossVarianceLiteralState(NamedTuple):
    """Nothing yet."""

    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVarianceLiteral:
    """Finds steps at which the variance of the last losses stands far above its history."""

    RULE: ClassVar[str] = "loss_variance"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Round,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 256

    window: int = 128
    """Losses that one variance is taken over, in steps."""

    limit_sigmas: float = 15.0
    """Height above the mean variance, in standard deviations of the variances."""

    def start(self) -> LossVarianceLiteralState:
        return LossVarianceLiteralState()

    def observe(
        self, state: LossVarianceLiteralState, event: Round
    ) -> tuple[LossVarianceLiteralState, Breach | None]:
        # Settings and names are final; the rule itself follows.
        return state, None
