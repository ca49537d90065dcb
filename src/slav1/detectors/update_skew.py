"""Updates that were left out on some ranks and made on others."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach
from slav1.named_ranks import named
from slav1.sample import Round


class UpdateSkewState(NamedTuple):
    """Nothing has to be remembered: each case is a finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSkew:
    """Finds steps after which the replicas can't be equal any more.

    An update is left out when the reduced gradient is not finite, which all replicas see
    alike. If only some of them do, that gradient was changed after it was reduced, as by
    bad memory, or was never reduced: from here on the weights differ. A fact, no statistics.
    """

    RULE: ClassVar[str] = "update_skew"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Round,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

    def start(self) -> UpdateSkewState:
        return UpdateSkewState()

    def observe(
        self, state: UpdateSkewState, event: Round
    ) -> tuple[UpdateSkewState, Breach | None]:
        without = [sample.rank for sample in event.samples if sample.is_update_left_out]
        if not without or len(without) == len(event.samples):
            return state, None
        return state, Breach(
            rule=self.RULE,
            rank=without[0] if len(without) == 1 else None,
            step=event.step,
            statistic=float(len(without)),
            limit=0.0,
            unit="ranks without the update",
            message=(
                f"The update of step {event.step} was left out on {named(without)} only: the "
                "gradient there was not that of the others, and the weights differ from here on."
            ),
            evidence={"ranks": list(without[:64]), "num_ranks": len(event.samples)},
        )
