"""Ranks that are slower than the others, by their own work."""

import math
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Fact, Status
from slav1.detectors._ecusum import ecusum, ecusum_limit
from slav1.detectors._self_times import (
    OFFSET_MEMORY,
    PARTS,
    RankMemory,
    after_round,
    growth_s,
    log_ratios,
    slowdown_ratio,
)
from slav1.phase import Phase
from slav1.sample import Round

# Shares of rounds as the slowest that are looked for side by side.
RATIOS = (0.5, 0.8, 0.97)
RATIOS_OF_TWO = (0.65, 0.8, 0.97)
# Share of the smallest slowdown that the mean of the last rounds must reach.
EFFECT_SHARE = 0.8
# Rounds of other ranks in a row after which the job is taken to have changed its size.
NUM_OTHER_ROUNDS = 10
_PHASES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


class StragglerSequentialState(NamedTuple):
    """One memory a rank, and how many rounds there were to learn from."""

    memories: tuple[RankMemory, ...] = (RankMemory(),)
    """By rank; a placeholder until the first round."""
    num_rounds: int = 0
    num_other: int = 0
    """Rounds of other ranks in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerSequential:
    """Finds the rank that works slower than its peers, compared with how it used to.

    A rank's self time is what it does between two gradient syncs, so the late rank shows
    the longest one and no clocks need to agree. Each rank's own offset, learned over
    ``baseline_rounds`` after the warm-up, is taken off, so a rank that has always had more
    to do is no straggler. Three things must then be true: an e-CUSUM says that one rank is
    the slowest more often than by chance, its mean slowdown over about the last 50 rounds
    reaches 0.8 of ``min_slowdown_ratio``, and that costs each step ``min_excess_ms``: in
    steps of a millisecond the ranks drift apart by what else their cores do.

    Nothing is found when all ranks are slow, or one step is, or there is one rank. A
    round with a warming-up rank is left out.

    The offsets are learned on while a rank is healthy, over about 1,000 rounds, which keeps
    it silent where self times vary by 20 % at random; a rank that slows down over
    thousands of rounds is not found.

    Raises:
        ValueError: If a setting is out of range.

    Source:
        Shin, Ramdas, Rinaldo, "E-detectors: a nonparametric framework for sequential
        change detection", New England Journal of Statistics in Data Science 2(2), 2023.
    """

    RULE: ClassVar[str] = "straggler"
    VARIANT: ClassVar[str] = "sequential"
    WATCHES: ClassVar[tuple[type, ...]] = (Round,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 200

    arl0: float = 1e6
    """Healthy rounds between two false alarms, all ranks together."""

    min_slowdown_ratio: float = 1.10
    """Smallest lasting slowdown worth a word, as a ratio to the other ranks."""

    min_excess_ms: float = 0.5
    """Smallest loss per step worth a word, in milliseconds."""

    baseline_rounds: int = 200
    """Rounds that each rank's own offset is learned from."""

    def __post_init__(self) -> None:
        if not self.arl0 >= 100:
            raise ValueError(f"arl0 must be at least 100 rounds, got {self.arl0}.")
        if not self.min_slowdown_ratio > 1:
            raise ValueError(
                f"min_slowdown_ratio must be above 1, got {self.min_slowdown_ratio}: with 1 "
                "every rank would be a straggler half of the time."
            )
        if not self.min_excess_ms >= 0:
            raise ValueError(f"min_excess_ms must be at least 0, got {self.min_excess_ms}.")
        if self.baseline_rounds < 10:
            raise ValueError(
                f"baseline_rounds must be at least 10, got {self.baseline_rounds}: the offset of "
                "a rank is a mean over them."
            )

    def start(self) -> StragglerSequentialState:
        return StragglerSequentialState()

    def observe(
        self, state: StragglerSequentialState, event: Round
    ) -> tuple[StragglerSequentialState, Breach | None]:
        ratios = log_ratios(event) if len(event.samples) > 1 else None
        if ratios is None:
            return state, None
        ranks = [sample.rank for sample in event.samples]
        if ranks != [memory.rank for memory in state.memories]:
            if state.num_rounds and state.num_other + 1 < NUM_OTHER_ROUNDS:
                return state._replace(num_other=state.num_other + 1), None
            state = StragglerSequentialState(tuple(RankMemory(rank) for rank in ranks))
        state = self._with_round(state, event, ratios)
        if state.num_rounds <= self.baseline_rounds:
            return state, None
        return self._told(self._with_evidence(state, ratios), event)

    def _with_round(
        self, state: StragglerSequentialState, event: Round, ratios: list[float]
    ) -> StragglerSequentialState:
        """Learns what is usual, and takes in what is now."""
        is_baseline = state.num_rounds < self.baseline_rounds
        gain = 1.0 / min(state.num_rounds + 1, OFFSET_MEMORY)
        memories = []
        for memory, sample, ratio in zip(state.memories, event.samples, ratios, strict=True):
            is_usual = is_baseline or self._is_healthy(memory)
            after = after_round(memory, sample, ratio, offset_gain=gain if is_usual else 0.0)
            memories.append(after._replace(effect=0.0) if is_baseline else after)
        return StragglerSequentialState(tuple(memories), state.num_rounds + 1)

    def _is_healthy(self, memory: RankMemory) -> bool:
        return not memory.is_slow and memory.effect < 0.5 * self._effect_limit

    @property
    def _effect_limit(self) -> float:
        return EFFECT_SHARE * math.log(self.min_slowdown_ratio)

    def _with_evidence(
        self, state: StragglerSequentialState, ratios: list[float]
    ) -> StragglerSequentialState:
        """Counts for each rank that is not known to be slow whether it was the slowest."""
        judged = [i for i, memory in enumerate(state.memories) if not memory.is_slow]
        if len(judged) < 2:
            return state
        heights = [ratios[i] - state.memories[i].offset for i in judged]
        slowest = judged[heights.index(max(heights))]
        null_ratio = 1.0 / len(judged)
        looked_for = RATIOS if len(judged) > 2 else RATIOS_OF_TWO
        memories = list(state.memories)
        for i in judged:
            old = memories[i]
            scores = ecusum(old.scores, i == slowest, null_ratio=null_ratio, ratios=looked_for)
            memories[i] = RankMemory(old.rank, old.offset, old.effect, scores, *old[4:])
        return StragglerSequentialState(tuple(memories), state.num_rounds, state.num_other)

    def _told(
        self, state: StragglerSequentialState, event: Round
    ) -> tuple[StragglerSequentialState, Breach | None]:
        """One finding a round; what else there is waits for the next one."""
        limit = ecusum_limit(arl0=self.arl0, num_tests=len(RATIOS) * len(state.memories))
        for i, memory in enumerate(state.memories):
            if memory.is_slow and memory.effect < 0.5 * self._effect_limit:
                after = _with(state, i, memory._replace(is_slow=False, scores=()))
                return after, self._recovery(memory, event)
            is_certain = not memory.is_slow and max(memory.scores, default=0.0) >= limit
            if is_certain and self._matters(memory):
                after = _with(state, i, memory._replace(is_slow=True, scores=()))
                return after, self._breach(state, memory, event, limit)
        return state, None

    def _matters(self, memory: RankMemory) -> bool:
        lost_s = math.expm1(memory.effect) * sum(memory.usual_s[: len(_PHASES)])
        return memory.effect > self._effect_limit and lost_s * 1e3 > self.min_excess_ms

    def _breach(
        self, state: StragglerSequentialState, memory: RankMemory, event: Round, limit: float
    ) -> Breach:
        others = [each for each in state.memories if each.rank != memory.rank]
        growths, peers = growth_s(memory), [growth_s(each) for each in others]
        excess = {part: growths[part] - median(peer[part] for peer in peers) for part in PARTS}
        worst = max(range(len(_PHASES)), key=lambda i: excess[PARTS[i]])
        slowdown = slowdown_ratio(memory) / median(slowdown_ratio(each) for each in others)
        evidence: dict[str, Fact] = {
            "slowdown_ratio": slowdown,
            "effect": memory.effect,
            "excess_s": {part: excess[part] for part in PARTS[:-1]},
            # The peers wait for the rank: their sync should have grown by what it lost.
            "peers_sync_growth_s": median(peer["sync"] for peer in peers),
        }
        return Breach(
            rule=self.RULE,
            is_actionable=False,
            rank=memory.rank,
            step=event.step,
            phase=_PHASES[worst],
            statistic=max(memory.scores),
            limit=limit,
            unit="e-CUSUM score",
            arl0=self.arl0,
            message=(
                f"Rank {memory.rank} works {slowdown:.2f} times as long as it used to beside its "
                f"peers by step {event.step}, most of it in {PARTS[worst]}."
            ),
            evidence=evidence,
        )

    def _recovery(self, memory: RankMemory, event: Round) -> Breach:
        return Breach(
            rule=self.RULE,
            status=Status.RECOVERED,
            is_actionable=False,
            rank=memory.rank,
            step=event.step,
            statistic=math.exp(memory.effect),
            limit=self.min_slowdown_ratio,
            unit="ratio",
            message=f"Rank {memory.rank} is as fast as its peers again by step {event.step}.",
        )


def _with(state: StragglerSequentialState, i: int, memory: RankMemory) -> StragglerSequentialState:
    memories = (*state.memories[:i], memory, *state.memories[i + 1 :])
    return state._replace(memories=memories)
