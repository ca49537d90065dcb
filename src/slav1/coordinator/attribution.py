"""Who holds up the others, and why: judged from where every rank is.

When one rank stops, all ranks stop: the others wait for it in their next collective.
So silence alone names nobody. What tells them apart is what each one does.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from slav1.coordinator import frames
from slav1.coordinator.frames import is_compiling, is_storing, user_frame, waits_for_peers
from slav1.coordinator.messages import IN_ORDER, Position
from slav1.phase import STEP_PHASES, Phase


class Cause(Enum):
    """Why a job stands still."""

    LOST = "rank_lost"
    LEFT = "rank_left"
    STOPPED = "process_stopped"
    BLOCKED_IN_KERNEL = "blocked_in_kernel"
    DATA = "data_loader"
    STUCK = "stuck"
    COMPILING = "compiling"
    STORING = "storing"
    BEHIND = "never_joined"
    SKIPPED = "skipped_collective"
    DIFFERENT_OPERATIONS = "different_operations"
    UNEVEN_BATCHES = "uneven_batches"
    ALL_WAIT = "all_ranks_wait"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """One judgement over all ranks of a job that stands still."""

    cause: Cause
    """Why."""

    rank: int | None
    """The rank at fault; None if none can be named."""

    sentence: str
    """What to tell people."""

    peer: int | None = None
    """A rank that waits for the one at fault, if the sentence names one."""

    is_deadlock: bool = False
    """Whether every rank waits for another one, so that time can't help."""


def attribute(
    positions: Sequence[Position],
    *,
    overdue: Collection[int] = (),
    has_uneven_batches: bool | None = None,
) -> Attribution:
    """Names the rank that holds up the others.

    Args:
        positions: One for every rank that ever joined, in any order, taken at about
            the same moment.
        overdue: Ranks that are past a limit of the phase they are in.
        has_uneven_batches: Whether the ranks' data loaders differ in length; None if
            some have none.

    Returns:
        The judgement. Evidence is weighed in this order: a process that is gone or
        stopped; a rank that does something of its own while others wait for peers;
        ranks that all wait, but in different places.
    """
    ranks = sorted(positions, key=lambda position: position.pulse.rank)
    gone = _gone(ranks)
    if gone is not None:
        return gone
    present = [rank for rank in ranks if rank.pulse.phase is not Phase.DONE]
    if not present:
        return Attribution(cause=Cause.UNKNOWN, rank=None, sentence="Every rank has finished.")
    busy = [rank for rank in present if not waits_for_peers(rank)]
    if not busy:
        finished = [rank for rank in ranks if rank.pulse.phase is Phase.DONE]
        return _all_wait(present, finished, has_uneven_batches)
    late = [rank for rank in busy if rank.pulse.rank in overdue and not _has_an_excuse(rank)]
    suspects = sorted(late or busy, key=_place)
    if len(suspects) == 1 or len(busy) < len(present):
        return _on_its_own(suspects[0])
    return _by_place(suspects)


def _gone(ranks: Sequence[Position]) -> Attribution | None:
    # Whoever stood still first: the others may have failed because of it.
    by_silence = sorted(ranks, key=lambda rank: -rank.pulse.since_progress_s)
    for pulse in (rank.pulse for rank in by_silence):
        if not pulse.is_alive and pulse.phase is not Phase.DONE:
            return Attribution(
                cause=Cause.LOST,
                rank=pulse.rank,
                sentence=f"Rank {pulse.rank} is gone: its process ended in step {pulse.step}, "
                f"{_in(pulse.phase)}, without a word.",
            )
    for pulse in (rank.pulse for rank in by_silence):
        if pulse.phase is Phase.DONE and pulse.exit_reason not in (None, *IN_ORDER):
            return Attribution(
                cause=Cause.LEFT,
                rank=pulse.rank,
                sentence=f"Rank {pulse.rank} left training in step {pulse.step} "
                f"({pulse.exit_reason}); the others wait for it.",
            )
    for pulse in (rank.pulse for rank in ranks):
        if pulse.process_state == "T":
            return Attribution(
                cause=Cause.STOPPED,
                rank=pulse.rank,
                sentence=f"Rank {pulse.rank} is stopped by a signal (SIGSTOP or a debugger) "
                f"in step {pulse.step}, {_in(pulse.phase)}.",
            )
    return None


def _on_its_own(position: Position) -> Attribution:
    pulse = position.pulse
    if is_compiling(position):
        cause, what = Cause.COMPILING, "is compiling"
    elif is_storing(position):
        cause, what = Cause.STORING, "is writing or reading a checkpoint"
    elif pulse.process_state == "D":
        cause, what = Cause.BLOCKED_IN_KERNEL, "is blocked in the kernel (storage or a driver)"
    elif pulse.phase is Phase.DATA:
        cause, what = Cause.DATA, "gets no batch from its data loader"
    elif pulse.process_state == "R":
        cause, what = Cause.STUCK, "is busy in a call that does not return"
    else:
        cause, what = Cause.STUCK, "sits in a call that does not return"
    return Attribution(
        cause=cause,
        rank=pulse.rank,
        sentence=f"Rank {pulse.rank} {what} in step {pulse.step}, {_in(pulse.phase)}, for "
        f"{pulse.since_progress_s:.1f} s{_at(position)}.",
    )


def _by_place(suspects: Sequence[Position]) -> Attribution:
    """No rank shows that it waits (no stacks, or a device is in between)."""
    first, second = suspects[:2]
    pulse = first.pulse
    if _has_an_excuse(first):
        return _on_its_own(first)
    if _place(first) < _place(second):
        return Attribution(
            cause=Cause.DATA if pulse.phase is Phase.DATA else Cause.BEHIND,
            rank=pulse.rank,
            peer=second.pulse.rank,
            sentence=f"Rank {pulse.rank} is behind all others: in step {pulse.step}, "
            f"{_in(pulse.phase)}, for {pulse.since_progress_s:.1f} s{_at(first)}.",
        )
    if pulse.phase is Phase.DATA:
        return Attribution(
            cause=Cause.DATA, rank=None, sentence="All ranks wait for their data loaders."
        )
    return Attribution(
        cause=Cause.UNKNOWN,
        rank=None,
        sentence=f"All ranks stand still in step {pulse.step}, {_in(pulse.phase)}, and none "
        "shows that it waits for another.",
    )


def _all_wait(
    present: Sequence[Position], finished: Sequence[Position], has_uneven_batches: bool | None
) -> Attribution:
    outside = [rank for rank in present if _has_left_the_steps(rank)]
    inside = [rank for rank in present if not _has_left_the_steps(rank)]
    if (outside or finished) and inside:
        return _left_the_steps([*outside, *finished], inside, has_uneven_batches)
    if finished:
        return _left_the_steps(finished, present, has_uneven_batches)
    if len({_whereabouts(rank) for rank in present}) > 1:
        return _out_of_step(present)
    pulse = present[0].pulse
    return Attribution(
        cause=Cause.ALL_WAIT,
        rank=None,
        sentence=f"All ranks wait in the same place (step {pulse.step}, {_in(pulse.phase)}"
        f"{_at(present[0])}): look at the network, or at collectives of different size or kind.",
        is_deadlock=True,
    )


def _left_the_steps(
    outside: Sequence[Position], inside: Sequence[Position], has_uneven_batches: bool | None
) -> Attribution:
    away, other = outside[0], inside[0]
    pulse = away.pulse
    is_at_end = pulse.phase is not Phase.CHECKPOINT or frames.is_at_epoch_end(away)
    is_uneven = is_at_end and has_uneven_batches is not False
    why = (
        "Most likely the ranks have different numbers of batches."
        if is_uneven
        else "Most likely the ranks took different branches."
    )
    entered = ""
    if pulse.phase is Phase.CHECKPOINT:
        entered = f"Checkpoint entered by ranks {_numbers(outside)}, missing {_numbers(inside)}. "
    where = "has finished" if pulse.phase is Phase.DONE else f"is in {_in(pulse.phase)}"
    return Attribution(
        cause=Cause.UNEVEN_BATCHES if is_uneven else Cause.DIFFERENT_OPERATIONS,
        rank=pulse.rank,
        peer=other.pulse.rank,
        sentence=f"{entered}Rank {pulse.rank} has left the steps after {away.num_batches} "
        f"batches and {where}{_at(away)}; rank {other.pulse.rank} has begun "
        f"{other.num_batches} batches and waits in step {other.pulse.step}, "
        f"{_in(other.pulse.phase)}{_at(other)}. {why}",
        is_deadlock=True,
    )


def _out_of_step(present: Sequence[Position]) -> Attribution:
    """All ranks wait inside of the steps, and not for the same thing."""
    ordered = sorted(present, key=_place)
    behind, ahead = ordered[0], ordered[-1]
    odd = _odd_one_out(present)
    is_apart = _place(behind) < _place(ahead)
    if is_apart and behind.pulse.phase is Phase.BACKWARD and odd in (None, ahead):
        return _skipped(ahead, behind)
    # Those ahead came through a collective that they can't have left out, so somebody
    # who never reached it has answered them with another one.
    odd = odd or (behind if is_apart else None)
    peer = next(rank for rank in present if _whereabouts(rank) != _whereabouts(odd or behind))
    first = odd or behind
    return Attribution(
        cause=Cause.DIFFERENT_OPERATIONS,
        rank=None if odd is None else odd.pulse.rank,
        peer=peer.pulse.rank,
        sentence="The ranks are in different operations: "
        f"rank {first.pulse.rank} waits in {_operation(first)}, rank {peer.pulse.rank} in "
        f"{_operation(peer)}. Look for a collective that only some ranks run.",
        is_deadlock=True,
    )


def _skipped(ahead: Position, behind: Position) -> Attribution:
    return Attribution(
        cause=Cause.SKIPPED,
        rank=ahead.pulse.rank,
        peer=behind.pulse.rank,
        sentence=f"Rank {ahead.pulse.rank} went past a collective that the others wait in: it "
        f"waits in {_operation(ahead)}, rank {behind.pulse.rank} in {_operation(behind)}.",
        is_deadlock=True,
    )


def _odd_one_out(present: Sequence[Position]) -> Position | None:
    """The rank that waits elsewhere than most; of two alike, the one in the user's code."""
    num = Counter(_whereabouts(rank) for rank in present)
    fewest = min(num.values())
    rare = [rank for rank in present if num[_whereabouts(rank)] == fewest]
    if len({_whereabouts(rank) for rank in rare}) == 1:
        return rare[0]
    in_user_code = [rank for rank in rare if user_frame(rank)]
    return in_user_code[0] if len({_whereabouts(rank) for rank in in_user_code}) == 1 else None


def _whereabouts(position: Position) -> tuple[tuple[int, int], str | None]:
    return _place(position), frames.wait_site(position)


def _has_an_excuse(position: Position) -> bool:
    return is_compiling(position) or is_storing(position)


def _has_left_the_steps(position: Position) -> bool:
    if position.pulse.phase is Phase.SETUP:
        return False
    return position.pulse.phase not in STEP_PHASES or frames.is_at_epoch_end(position)


def _place(position: Position) -> tuple[int, int]:
    # BETWEEN comes before the DATA of the same step, not after its optimizer: the step
    # word already names the step about to be entered.
    phase = position.pulse.phase
    return position.pulse.step, 0 if phase is Phase.BETWEEN else int(phase)


def _operation(position: Position) -> str:
    pulse = position.pulse
    return f"{frames.operation(position)} of step {pulse.step}, {_in(pulse.phase)}{_at(position)}"


def _at(position: Position) -> str:
    site = frames.wait_site(position)
    user = user_frame(position)
    if site is None:
        return ""
    return f" at {site}" if user in (None, site) else f" at {site}, called from {user}"


def _numbers(positions: Sequence[Position]) -> list[int]:
    return [position.pulse.rank for position in positions]


def _in(phase: Phase) -> str:
    return f"phase {phase.name.lower()}"
