"""Checkpoint writes that fail too often, by evidence that grows with every write."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Fact
from slav1.detectors._bounds import clopper_pearson
from slav1.detectors._ecusum import ecusum, ecusum_limit
from slav1.detectors._saves import RULE, check_target, corrupt_write, failure_notice, recovery
from slav1.sample import Save

BOUND_CONFIDENCE = 0.95
"""Confidence of each of the two bounds that a finding publishes."""


class CkptSuccessState(NamedTuple):
    """The saves so far, and the evidence against them."""

    scores: tuple[float, ...] = ()
    num_saves: int = 0
    num_failed: int = 0
    num_good_in_row: int = 0
    is_open: bool = False
    """Whether an incident is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CkptSuccessSequential:
    """Finds checkpoint writes that fail more often than the contract allows.

    A rate over the few writes of five minutes can't tell 99.9 % from 99 %; so every write adds
    to the evidence, however long ago the one before was. A failed write is a notice; five in a
    row, or about a hundred writes of which 6 % fail, are a breach. A write that reads back
    differently is a breach at once.

    Raises:
        ValueError: If a setting is out of range.

    Source:
        Shin, Ramdas, Rinaldo, "E-detectors: a nonparametric framework for sequential
        change detection", New England Journal of Statistics in Data Science 2(2), 2023.
    """

    RULE: ClassVar[str] = RULE
    VARIANT: ClassVar[str] = "sequential"
    WATCHES: ClassVar[tuple[type, ...]] = (Save,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 334

    target_ratio: float = 0.997
    """Share of writes that succeed in a healthy run."""

    bad_ratio: float = 0.97
    """Share of writes that succeed in the runs to be found."""

    arl0: float = 1e5
    """Healthy writes between two false alarms, at least; simulated more than ten times that."""

    recovery_saves: int = 10
    """Good writes in a row that end an incident."""

    def __post_init__(self) -> None:
        check_target(self.target_ratio)
        if not 0 < self.bad_ratio < self.target_ratio:
            raise ValueError(
                f"bad_ratio must lie between 0 and target_ratio ({self.target_ratio}), got "
                f"{self.bad_ratio}: it is the share of good writes in a run that shall be found."
            )
        if not self.arl0 >= 100:
            raise ValueError(f"arl0 must be at least 100 writes, got {self.arl0}.")
        if self.recovery_saves < 1:
            raise ValueError(f"recovery_saves must be at least 1, got {self.recovery_saves}.")

    def start(self) -> CkptSuccessState:
        return CkptSuccessState()

    def observe(
        self, state: CkptSuccessState, event: Save
    ) -> tuple[CkptSuccessState, Breach | None]:
        scores = ecusum(
            state.scores,
            not event.succeeded,
            # Rounded, or 0.03 and 0.003 would not be ten apart.
            null_ratio=round(1.0 - self.target_ratio, 12),
            ratios=(round(1.0 - self.bad_ratio, 12),),
        )
        after = CkptSuccessState(
            scores=scores,
            num_saves=state.num_saves + 1,
            num_failed=state.num_failed + (not event.succeeded),
            num_good_in_row=state.num_good_in_row + 1 if event.succeeded else 0,
            is_open=state.is_open,
        )
        return self._judged(after, event)

    def _judged(
        self, state: CkptSuccessState, event: Save
    ) -> tuple[CkptSuccessState, Breach | None]:
        if event.is_corrupt:
            breach = corrupt_write(event, self._counts(state), self.target_ratio)
            return state._replace(is_open=True), breach
        limit = ecusum_limit(arl0=self.arl0, num_tests=1)
        # A score of five straight failures is the limit but for its last digits.
        if max(state.scores) >= limit - 1e-9:
            return state._replace(scores=(), is_open=True), self._breach(state, event, limit)
        if not event.succeeded:
            args = (state.num_failed, state.num_saves, self.target_ratio)
            return state, failure_notice(event, *args)
        if state.is_open and state.num_good_in_row >= self.recovery_saves:
            text = f"{state.num_good_in_row} saves in a row succeeded."
            return state._replace(is_open=False), recovery(event, text)
        return state, None

    def _counts(self, state: CkptSuccessState) -> dict[str, Fact]:
        num_good = state.num_saves - state.num_failed
        lower, upper = clopper_pearson(num_good, state.num_saves, confidence=BOUND_CONFIDENCE)
        return {
            "num_saves": state.num_saves,
            "num_failed": state.num_failed,
            "lower_bound": lower,
            "upper_bound": upper,
            "confidence": BOUND_CONFIDENCE,
        }

    def _breach(self, state: CkptSuccessState, event: Save, limit: float) -> Breach:
        counts = self._counts(state)
        return Breach(
            rule=RULE,
            rank=None,
            step=event.step,
            statistic=max(state.scores),
            limit=limit,
            unit="e-CUSUM score",
            arl0=self.arl0,
            message=(
                f"Checkpoint writes fail too often: {state.num_failed} of "
                f"{state.num_saves} in this run, {1.0 - self.target_ratio:.2%} are allowed."
            ),
            evidence={"kind": "rate", "target_ratio": self.target_ratio, **counts},
        )
