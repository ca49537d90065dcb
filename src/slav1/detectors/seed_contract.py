"""Seeds, random numbers and first weights that are not what the contract says."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from slav1.breach import Breach, Status
from slav1.detectors._audits import RULE
from slav1.sample import Audit, Stream

MOST_STREAMS = 512
"""Streams that are remembered, the last ones; those of workers, since audits by all ranks
come already compared."""

MOST_TWINS = 8
"""Streams that a message names."""


class SeedContractState(NamedTuple):
    """Where random numbers were seen that a worker began with."""

    seen: tuple[tuple[str, int, int, int, int], ...] = ()
    """Generator and digest, then rank, loader, worker and epoch."""
    is_open: int = 0
    """1 while an incident is open; 2 while it is, or was joined by, one of a step that does not
    repeat itself, which does not end."""
    rank: int = -1
    """Rank that it is about; -1 if it is about no single one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedContract:
    """Finds replicas that start apart, settings that differ between ranks, generators that
    were not restored, and random numbers that come twice.

    No statistics: the same state of a generator gives the same numbers. Where nobody has
    asked for seeds to be set, numbers that come twice are a notice.
    """

    RULE: ClassVar[str] = RULE
    VARIANT: ClassVar[str] = "literal"
    WATCHES: ClassVar[tuple[type, ...]] = (Audit,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = 1

    def start(self) -> SeedContractState:
        return SeedContractState()

    def observe(
        self, state: SeedContractState, event: Audit
    ) -> tuple[SeedContractState, Breach | None]:
        after, twins = _with_streams(state, event.streams)
        wrong = (*event.wrong, *(twins if event.is_owed else ()))
        rank = event.at_fault[0] if len(event.at_fault) == 1 else None
        if event.moment == "probe":
            return _on_probe(after, event, wrong)
        if wrong:
            is_open = max(1, state.is_open)
            after = after._replace(is_open=is_open, rank=-1 if rank is None else rank)
            return after, _finding(event, wrong, Status.BREACH, rank)
        if twins:
            return after, _finding(event, tuple(twins), Status.NOTICE, rank)
        if state.is_open == 1 and event.moment != "workers":
            # An incident ends under the rank that it began with.
            rank = None if state.rank < 0 else state.rank
            kept = ("All ranks have what they should have again.",)
            after = after._replace(is_open=0, rank=-1)
            return after, _finding(event, kept, Status.RECOVERED, rank)
        return after, None


def _on_probe(
    state: SeedContractState, event: Audit, wrong: tuple[str, ...]
) -> tuple[SeedContractState, Breach | None]:
    """Each rank tells of its own; what all of them find is told once."""
    if not wrong or state.is_open == 2:
        return state, None
    return state._replace(is_open=2, rank=-1), _finding(event, wrong, Status.BREACH, None)


def _with_streams(
    state: SeedContractState, streams: tuple[Stream, ...]
) -> tuple[SeedContractState, list[str]]:
    owners = {entry[0]: entry[1:] for entry in state.seen}
    twins = []
    for stream in streams:
        key, owner = f"{stream.generator} {stream.digest}", stream[2:]
        # The same worker of the same pass again, as after a resume, is no second one.
        other = owners.setdefault(key, owner)
        if other != owner:
            twins.append(
                f"The {stream.generator} generator of {_worker(*owner)} begins as that of "
                f"{_worker(*other)}."
            )
    entries = tuple((key, *owner) for key, owner in owners.items())[-MOST_STREAMS:]
    return state._replace(seen=entries), twins


def _worker(rank: int, loader: int, worker: int, epoch: int) -> str:
    which = f" of loader {loader}" if loader else ""
    return f"worker {worker}{which} on rank {rank} in epoch {epoch}"


def _finding(event: Audit, sentences: tuple[str, ...], status: Status, rank: int | None) -> Breach:
    more = len(sentences) - MOST_TWINS
    rest = f" And {more} more." if more > 0 else ""
    return Breach(
        rule=RULE,
        status=status,
        rank=rank,
        step=event.step,
        statistic=None,
        limit=None,
        unit="",
        message=" ".join(sentences[:MOST_TWINS]) + rest,
        evidence={"moment": event.moment, "ranks": list(event.at_fault), "num": len(sentences)},
    )
