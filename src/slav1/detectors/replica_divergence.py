"""Copies of the same tensor, on several ranks, that are not equal any more."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Fact, Status
from slav1.detectors._reruns import observe_rerun
from slav1.named_ranks import named
from slav1.sample import Difference, Replicas, Rerun

MAX_TOLD = 16
"""Differing tensors that the evidence lists."""


_REPLAY = "replay"
"""Part that stands for micro-batches that are run twice."""


class Share(NamedTuple):
    """What is known of one share of some ranks' tensors."""

    part: str = ""
    slot: int = 0
    num_equal: int = 0
    """How often it was equal on all of these ranks."""
    equal_step: int = -1
    """Last step after which it was."""
    num_differing: int = 0
    """Times in a row that it was not; not above 0 and equal at the last look."""
    rank: int = -1
    """Rank that the open incident is about; -1 if it is about none alone."""


class ReplicaDivergenceState(NamedTuple):
    """What was seen of each share; the first is an example, and stands for none."""

    shares: tuple[Share, ...] = (Share(),)
    apart: tuple[str, ...] = ()
    """Parts that were not equal from the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDivergenceLiteral:
    """Finds parameters and optimizer state that differ between ranks that hold copies, and
    micro-batches that a rank computed otherwise when it ran them again.

    No statistics: digests of bits that should be equal are compared. Of three copies or
    more the smaller number is suspect; two that differ are both, and never is rank 0 right
    for being rank 0.

    A breach is only acted on if these tensors have been equal ``equal_looks`` times before
    in this start of the run, all that is compared with them was equal from the beginning,
    and nothing is known that lets healthy copies differ. So machines that compute
    differently, or copies that are meant to differ, are told once and stop nothing. The same
    holds for parameters that no optimizer updates: one rank may keep an average of weights.
    A micro-batch is acted on if bits repeated ``equal_looks`` times before, and a third run
    says that the first was wrong, which all ranks have trained with.

    Raises:
        ValueError: If a setting is out of range.

    Source:
        The seed clause of the contract, and its check of copies.
    """

    RULE: ClassVar[str] = "replica_divergence"
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Replicas, Rerun)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

    every_steps: int = 50
    """Steps in which every tensor is looked at once, 1 to 1000000."""

    equal_looks: int = 2
    """Looks that must have found a tensor equal before a difference is acted on, 1 to 100."""

    replay_ratio: float = 0.0
    """Share of the micro-batches whose forward and backward each rank runs twice, 0 to 1;
    costs about as much of their time, of models that take milliseconds twice that. 0 runs
    none."""

    def __post_init__(self) -> None:
        for name, highest in (("every_steps", 1_000_000), ("equal_looks", 100)):
            if not 1 <= getattr(self, name) <= highest:
                raise ValueError(f"{name} must be 1 to {highest}, got {getattr(self, name)}.")
        if not 0 <= self.replay_ratio <= 1:
            raise ValueError(f"replay_ratio must be 0 to 1, got {self.replay_ratio}.")

    def start(self) -> ReplicaDivergenceState:
        return ReplicaDivergenceState()

    def observe(
        self, state: ReplicaDivergenceState, event: Replicas | Rerun
    ) -> tuple[ReplicaDivergenceState, Breach | None]:
        if isinstance(event, Rerun):
            return self._on_rerun(state, event)
        # By part and slot.
        known: dict[tuple[str, int], Share] = {share[:2]: share for share in state.shares}
        if event.is_first:
            for slot in event.slots:
                known[event.part, slot] = Share(part=event.part, slot=slot)
        mine = [known.get((event.part, slot), Share(event.part, slot)) for slot in event.slots]
        if event.num_differing:
            return self._differ(state, event, known, mine)
        after = [
            share._replace(
                num_equal=share.num_equal + 1, equal_step=event.step, num_differing=0, rank=-1
            )
            for share in mine
        ]
        apart = tuple(part for part in state.apart if not (event.is_first and part == event.part))
        was_open = [share for share in mine if share.num_differing]
        recovered = _recovered(event, was_open[0]) if was_open and event.is_trained else None
        return ReplicaDivergenceState(_merged(known, after), apart), recovered

    def _on_rerun(
        self, state: ReplicaDivergenceState, event: Rerun
    ) -> tuple[ReplicaDivergenceState, Breach | None]:
        known: dict[tuple[str, int], Share] = {share[:2]: share for share in state.shares}
        share = known.get((_REPLAY, 0), Share(part=_REPLAY))
        num, breach = observe_rerun(share.num_differing, event, equal_looks=self.equal_looks)
        after = _merged(known, [share._replace(num_differing=num)])
        return state._replace(shares=after), breach

    def _differ(
        self,
        state: ReplicaDivergenceState,
        event: Replicas,
        known: dict[tuple[str, int], Share],
        mine: list[Share],
    ) -> tuple[ReplicaDivergenceState, Breach | None]:
        suspects = _suspects(event.differing)
        rank = suspects[0] if len(suspects) == 1 else -1
        slots = {one.slot for one in event.differing}
        hit = [share for share in mine if share.slot in slots]
        after = [
            share._replace(num_differing=share.num_differing + 1, rank=rank)
            if share.slot in slots
            else share._replace(num_equal=share.num_equal + 1, equal_step=event.step)
            for share in mine
        ]
        is_from_beginning = any(not share.num_equal for share in hit)
        apart = state.apart
        if is_from_beginning and event.part not in apart:
            apart = (*apart, event.part)
        changed = ReplicaDivergenceState(_merged(known, after), apart)
        times = max(share.num_differing for share in hit) + 1
        if not event.is_trained:
            return changed, _untrained(event, suspects) if times == 1 else None
        if times & (times - 1):
            # Told at the first look, the second, the fourth, the eighth ...
            return changed, None
        if is_from_beginning:
            return changed, _never_equal(event, suspects) if times == 1 else None
        num_equal = min(share.num_equal for share in hit)
        is_actionable = (
            event.is_certain and event.part not in apart and num_equal >= self.equal_looks
        )
        equal_step = min(share.equal_step for share in hit)
        return changed, _breach(event, suspects, equal_step, is_actionable=is_actionable)


def _merged(known: dict[tuple[str, int], Share], after: Iterable[Share]) -> tuple[Share, ...]:
    known.update({share[:2]: share for share in after})
    return tuple(known.values())


def _suspects(differing: Iterable[Difference]) -> tuple[int, ...]:
    """Ranks that are not of a majority; all of them if there is none."""
    suspects: set[int] = set()
    for one in differing:
        num_ranks = sum(map(len, one.camps))
        has_majority = num_ranks > 2 and 2 * len(one.camps[0]) > num_ranks
        for camp in one.camps[1:] if has_majority else one.camps:
            suspects.update(camp)
    return tuple(sorted(suspects))


def _breach(
    event: Replicas, suspects: tuple[int, ...], equal_step: int, *, is_actionable: bool
) -> Breach:
    since = f"since a step from {equal_step + 1} to {event.step}"
    return Breach(
        rule=ReplicaDivergenceLiteral.RULE,
        is_actionable=is_actionable,
        rank=suspects[0] if len(suspects) == 1 else None,
        step=event.step,
        statistic=float(event.num_differing),
        limit=0.0,
        unit="tensors",
        message=f"{_what(event, suspects)}, {since}.",
        evidence={
            **_evidence(event, suspects),
            "equal_step": equal_step,
            "first_step": equal_step + 1,
            # Whatever flipped a bit, it was not the data.
            "are_batches_good": True,
        },
    )


def _never_equal(event: Replicas, suspects: tuple[int, ...]) -> Breach:
    return _notice(
        event,
        suspects,
        ", from the first look on: they are meant to differ, or these machines compute "
        "differently. Nothing is done about differences between these ranks.",
    )


def _untrained(event: Replicas, suspects: tuple[int, ...]) -> Breach:
    return _notice(
        event,
        suspects,
        f" after step {event.step}. No optimizer updates them, so the training itself may well "
        "have changed them, as an average of weights that one rank keeps; nothing is done.",
    )


def _notice(event: Replicas, suspects: tuple[int, ...], rest: str) -> Breach:
    return Breach(
        rule=ReplicaDivergenceLiteral.RULE,
        status=Status.NOTICE,
        is_actionable=False,
        rank=None,
        step=event.step,
        statistic=float(event.num_differing),
        limit=0.0,
        unit="tensors",
        message=f"{_what(event, suspects)}{rest}",
        evidence=_evidence(event, suspects),
    )


def _recovered(event: Replicas, share: Share) -> Breach:
    return Breach(
        rule=ReplicaDivergenceLiteral.RULE,
        status=Status.RECOVERED,
        is_actionable=False,
        rank=None if share.rank < 0 else share.rank,
        step=event.step,
        statistic=0.0,
        limit=0.0,
        unit="tensors",
        message=f"All copies are equal again after step {event.step}.",
    )


def _what(event: Replicas, suspects: tuple[int, ...]) -> str:
    first = event.differing[0]
    kind = "" if first.kind == "parameter" else f"{first.kind} of "
    num_more = event.num_differing - 1
    more = f" and of {num_more} more tensor{'s' if num_more > 1 else ''}" if num_more else ""
    others = [rank for rank in event.ranks if rank not in suspects]
    if not others:
        return (
            f"{named(suspects).capitalize()} hold different bits of {kind}{first.parameter}{more}"
        )
    verb = "holds" if len(suspects) == 1 else "hold"
    them = f"the other {len(others)} ranks" if len(others) > 1 else "the other rank"
    told = named(suspects).capitalize()
    return f"{told} {verb} other bits of {kind}{first.parameter}{more} than {them}"


def _evidence(event: Replicas, suspects: tuple[int, ...]) -> dict[str, Fact]:
    first = event.differing[0]
    differing: list[Fact] = [
        {
            "parameter": one.parameter,
            "tensor": one.kind,
            "ranks": [list(camp) for camp in one.camps],
        }
        for one in event.differing[:MAX_TOLD]
    ]
    return {
        "parameter": first.parameter,
        "tensor": first.kind,
        "suspects": list(suspects),
        "ranks": list(event.ranks),
        "num_tensors": event.num_tensors,
        "differing": differing,
    }
