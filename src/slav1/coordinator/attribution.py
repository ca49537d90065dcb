"""Who holds up the others, and why: judged from where every rank is.

When one rank stops, all ranks stop: the others wait for it in their next collective.
So silence alone names nobody. What tells them apart is what each one does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from slav1.coordinator.messages import Position
from slav1.phase import Phase

# Innermost Python frames behind which a rank waits for its peers. The autograd engine
# belongs here because gradient sync happens inside it.
_WAITS = (
    "torch/distributed/",
    "torch/autograd/graph.py",
    "torch/nn/parallel/distributed.py",
    "torch/_ops.py",
)
_COMPILES = ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/", "triton/compiler/")
_LIBRARIES = ("/torch/", "/lightning/", "/pytorch_lightning/", "/accelerate/", "/slav1/")
_OURS = ("/sla_lightning/", "/sla_accelerate/", "/contextlib.py", "<frozen ")


class Cause(Enum):
    """Why a job stands still."""

    LOST = "rank_lost"
    LEFT = "rank_left"
    STOPPED = "process_stopped"
    BLOCKED_IN_KERNEL = "blocked_in_kernel"
    DATA = "data_loader"
    STUCK = "stuck"
    COMPILING = "compiling"
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

    is_deadlock: bool = False
    """Whether every rank waits for another one, so that time can't help."""


def attribute(positions: Sequence[Position]) -> Attribution:
    """Names the rank that holds up the others.

    Args:
        positions: One for every rank that ever joined, in any order, taken at about
            the same moment.

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
    busy = [rank for rank in present if not waits_for_peers(rank)]
    if busy and (len(busy) < len(present) or len(present) == 1):
        return _on_its_own(min(busy, key=_place))
    if busy:
        return _by_place(present)
    return _all_wait(ranks, present)


def waits_for_peers(position: Position) -> bool:
    """Whether a rank sits in a call that only returns when other ranks come."""
    if position.pulse.process_state in "TDR" or not position.stack:
        return False
    return any(part in position.stack[0] for part in _WAITS)


def is_compiling(position: Position) -> bool:
    """Whether a rank is inside PyTorch's compiler."""
    return any(part in frame for frame in position.stack for part in _COMPILES)


def user_frame(position: Position) -> str | None:
    """The innermost frame of the user's own code; None if there is none."""
    for frame in position.stack:
        if not any(part in frame for part in _LIBRARIES + _OURS):
            return frame
    return None


def _gone(ranks: Sequence[Position]) -> Attribution | None:
    for position in ranks:
        pulse = position.pulse
        if not pulse.is_alive and pulse.phase is not Phase.DONE:
            return Attribution(
                cause=Cause.LOST,
                rank=pulse.rank,
                sentence=f"Rank {pulse.rank} is gone: its process ended in step {pulse.step}, "
                f"{_in(pulse.phase)}, without a word.",
            )
        if pulse.phase is Phase.DONE and pulse.exit_reason not in (None, "finished"):
            return Attribution(
                cause=Cause.LEFT,
                rank=pulse.rank,
                sentence=f"Rank {pulse.rank} left training in step {pulse.step} "
                f"({pulse.exit_reason}); the others wait for it.",
            )
    for position in ranks:
        pulse = position.pulse
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
    where = f"step {pulse.step}, {_in(pulse.phase)}, for {pulse.since_progress_s:.1f} s"
    at = f" at {position.stack[0]}" if position.stack else ""
    if is_compiling(position):
        cause, what = Cause.COMPILING, "is compiling"
    elif pulse.process_state == "D":
        cause, what = Cause.BLOCKED_IN_KERNEL, "is blocked in the kernel (storage or a driver)"
    elif pulse.phase is Phase.DATA:
        cause, what = Cause.DATA, "gets no batch from its data loader"
    elif pulse.process_state == "R":
        cause, what = Cause.STUCK, "is busy in a call that does not return"
    else:
        cause, what = Cause.STUCK, "sits in a call that does not return"
    return Attribution(
        cause=cause, rank=pulse.rank, sentence=f"Rank {pulse.rank} {what} in {where}{at}."
    )


def _by_place(present: Sequence[Position]) -> Attribution:
    """No rank shows that it waits (no stacks, or a device is in between)."""
    first, second = sorted(present, key=_place)[:2]
    pulse = first.pulse
    if _place(first) < _place(second):
        return Attribution(
            cause=Cause.DATA if pulse.phase is Phase.DATA else Cause.BEHIND,
            rank=pulse.rank,
            sentence=f"Rank {pulse.rank} is behind all others: in step {pulse.step}, "
            f"{_in(pulse.phase)}, for {pulse.since_progress_s:.1f} s.",
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


def _all_wait(ranks: Sequence[Position], present: Sequence[Position]) -> Attribution:
    finished = [rank for rank in ranks if rank.pulse.phase is Phase.DONE]
    outside = [rank for rank in present if not _is_in_loop(rank)] + finished
    inside = [rank for rank in present if _is_in_loop(rank)]
    if outside and inside:
        return _left_the_loop(outside, inside)
    places = {_place(rank) for rank in present}
    if len(places) > 1:
        return _out_of_step(present)
    pulse = present[0].pulse
    return Attribution(
        cause=Cause.ALL_WAIT,
        rank=None,
        sentence=f"All ranks wait in the same place (step {pulse.step}, {_in(pulse.phase)}): "
        "look at the network, or at collectives of different size or kind.",
        is_deadlock=True,
    )


def _left_the_loop(outside: Sequence[Position], inside: Sequence[Position]) -> Attribution:
    away, others = outside[0], inside[0]
    pulse = away.pulse
    has_ended = pulse.phase in (Phase.DONE, Phase.TEARDOWN)
    if has_ended or (pulse.phase is Phase.BETWEEN and pulse.step < others.pulse.step):
        cause, why = Cause.UNEVEN_BATCHES, "the ranks have different numbers of batches"
    elif pulse.phase is Phase.EVALUATION:
        cause, why = Cause.UNEVEN_BATCHES, "the ranks have different numbers of batches"
    else:
        cause, why = Cause.DIFFERENT_OPERATIONS, "the ranks took different branches"
    return Attribution(
        cause=cause,
        rank=pulse.rank,
        sentence=f"Rank {pulse.rank} has left the steps after step {pulse.step - 1} and is "
        f"{_in(pulse.phase)}{_at(away)}; rank {others.pulse.rank} waits for it in step "
        f"{others.pulse.step}, {_in(others.pulse.phase)}{_at(others)}. Most likely {why}.",
        is_deadlock=True,
    )


def _out_of_step(present: Sequence[Position]) -> Attribution:
    odd = [rank for rank in present if rank.pulse.phase not in (Phase.BACKWARD, Phase.BETWEEN)]
    in_user_code = [rank for rank in present if _waits_in_user_code(rank)]
    last = max(present, key=_place)
    if in_user_code and len(in_user_code) < len(present):
        away, cause = in_user_code[0], Cause.DIFFERENT_OPERATIONS
    elif odd and len(odd) < len(present):
        away, cause = odd[0], Cause.DIFFERENT_OPERATIONS
    else:
        away, cause = last, Cause.SKIPPED
    other = next(rank for rank in present if rank is not away)
    what = (
        "went past a collective that the others wait in"
        if cause is Cause.SKIPPED
        else "waits in a different operation than the others"
    )
    return Attribution(
        cause=cause,
        rank=away.pulse.rank,
        sentence=f"Rank {away.pulse.rank} {what}: it is in step {away.pulse.step}, "
        f"{_in(away.pulse.phase)}{_at(away)}; rank {other.pulse.rank} is in step "
        f"{other.pulse.step}, {_in(other.pulse.phase)}{_at(other)}.",
        is_deadlock=True,
    )


def _waits_in_user_code(position: Position) -> bool:
    """Whether the collective was called by the user's code, not by the framework."""
    for frame in position.stack:
        if any(part in frame for part in _WAITS):
            continue
        return not any(part in frame for part in _LIBRARIES + _OURS)
    return False


def _is_in_loop(position: Position) -> bool:
    return position.pulse.phase in (
        Phase.DATA,
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.OPTIMIZER,
        Phase.BETWEEN,
    )


def _place(position: Position) -> tuple[int, int]:
    # BETWEEN comes before the DATA of the same step, not after its optimizer: the step
    # word already names the step about to be entered.
    phase = position.pulse.phase
    return position.pulse.step, 0 if phase is Phase.BETWEEN else int(phase)


def _at(position: Position) -> str:
    frame = user_frame(position)
    return f" ({frame})" if frame else ""


def _in(phase: Phase) -> str:
    return f"phase {phase.name.lower()}"
