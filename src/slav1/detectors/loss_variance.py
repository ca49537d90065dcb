"""Loss spikes, shifts and growing noise, by sequential tests on the de-trended loss."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.sample import Round


class LossVarianceSequentialState(NamedTuple):
    """Nothing yet."""

    num_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVarianceSequential:
    """Finds steps at which the loss leaves its own trend or noise."""

    RULE: ClassVar[str] = "loss_variance"
    VARIANT: ClassVar[str] = "sequential"
    WATCHES: ClassVar[tuple[type, ...]] = (Round,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 100

    arl0: float = 1e6
    """Healthy steps between two false alarms of one statistic, in steps."""

    outlier_sigmas: float = 8.0
    """Height above the trend that makes a step an outlier, in standard deviations."""

    jump_sigmas: float = 50.0
    """Height above the trend at which one step is enough for a breach, in standard deviations."""

    min_rise_ratio: float = 0.25
    """Smallest rise that is a breach, as a share of the loss; a smaller one is a notice."""

    recovery_steps: int = 5
    """Steps without an outlier that close an incident, in steps."""

    def start(self) -> LossVarianceSequentialState:
        return LossVarianceSequentialState()

    def observe(
        self, state: LossVarianceSequentialState, event: Round
    ) -> tuple[LossVarianceSequentialState, Breach | None]:
        # Settings and names are final; the rule itself follows.
        return state, None
