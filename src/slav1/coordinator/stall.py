"""From silent ranks to one incident: who holds up the job, and is it time to act.

A rank that waits for a slow save is as silent as one whose peer hangs. So a silence
opens an incident only when the rank at fault has overstepped the limit of its *own*
phase, or when every rank waits for another and none moved between two looks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slav1.breach import Breach, Fact, Status
from slav1.coordinator.attribution import Attribution, Cause, attribute
from slav1.coordinator.frames import waits_for_peers
from slav1.coordinator.messages import Position
from slav1.phase import Phase

LOOK_EVERY_S = 0.5
"""Pause between two looks at all ranks while any is silent, in seconds."""

MAX_FRAMES = 20
"""Innermost frames of a stack that stand in the ledger; the file beside it has all."""

_FACTS = (Cause.LOST, Cause.LEFT)


class Stall:
    """Collects the silences of single ranks and judges them together."""

    def __init__(self, *, compile_limit_s: float, store_limit_s: float) -> None:
        """Starts with no rank silent.

        Args:
            compile_limit_s: How long a rank may compile in any phase, in seconds.
            store_limit_s: How long it may write or read a checkpoint in any phase, in
                seconds.
        """
        self._excuses_s = {Cause.COMPILING: compile_limit_s, Cause.STORING: store_limit_s}
        self._silent: dict[int, Breach] = {}
        self._asked_at_s = float("-inf")
        self._changes: Mapping[int, int] = {}
        self._reported: Breach | None = None
        self._all_stopped_at_s = float("-inf")
        self.num_told = 0
        """Looks that led to a report."""
        self.has_uneven_batches: bool | None = None
        """Whether the ranks' data loaders differ in length; None if that is not known."""

    @property
    def is_open(self) -> bool:
        """Whether an incident was reported and is not over."""
        return self._reported is not None

    @property
    def is_overdue(self) -> bool:
        """Whether some rank is silent beyond its hard limit."""
        return any(breach.is_actionable for breach in self._silent.values())

    def on_finding(self, breach: Breach) -> Breach | None:
        """Takes in what one rank's own hang detector says.

        Returns:
            The end of the incident, if this was the rank it names, or its last silent one.
        """
        assert breach.rank is not None, "each hang detector watches one rank"
        if breach.status is Status.BREACH:
            self._silent[breach.rank] = breach
            return None
        self._silent.pop(breach.rank, None)
        over = self._reported
        if over is None or (self._silent and over.rank != breach.rank):
            return None
        self._reported = None
        return replace(over, status=Status.RECOVERED, step=breach.step, message=breach.message)

    def forget(self, rank: int) -> None:
        """A rank left or is gone; its own silence no longer counts."""
        self._silent.pop(rank, None)
        if self._reported is not None and self._reported.rank == rank:
            # What it leaves behind is a new matter: the others now wait for one that left.
            self._reported = None

    def wants_look(self, now_s: float) -> bool:
        """Whether all ranks should be looked at now."""
        if not self._silent or now_s - self._asked_at_s < LOOK_EVERY_S:
            return False
        if self._reported is not None and self._reported.is_actionable:
            return False
        self._asked_at_s = now_s
        return True

    def judge(self, positions: Sequence[Position]) -> list[Breach]:
        """Judges one look at all ranks.

        Returns:
            The incident, when it is first seen and again when it is time to act; before
            it the end of an earlier one that named another rank. Nothing if there is
            nothing new to say.
        """
        if _are_all_stopped(positions):
            self._all_stopped_at_s = self._asked_at_s
            return []
        attribution = attribute(
            positions, overdue=self._silent, has_uneven_batches=self.has_uneven_batches
        )
        if not self._is_proved(attribution, positions):
            return []
        breach = self._breach(attribution, positions)
        if self._asked_at_s - self._all_stopped_at_s < (breach.limit or 0.0):
            return []
        before = self._reported
        if before is not None and not breach.is_actionable:
            return []
        self._reported = breach
        self.num_told += 1
        if before is None or before.rank == breach.rank:
            return [breach]
        return [replace(before, status=Status.RECOVERED, message=breach.message), breach]

    def _is_proved(self, attribution: Attribution, positions: Sequence[Position]) -> bool:
        """Whether the rank named is at fault, and not only the one the others wait for."""
        changes = {position.pulse.rank: position.change for position in positions}
        stood_still, self._changes = changes == self._changes, changes
        if not self._silent or self._is_excused(attribution, positions):
            return False
        if attribution.rank in self._silent or attribution.cause in _FACTS:
            return True
        return stood_still and (attribution.is_deadlock or attribution.rank is None)

    def _is_excused(self, attribution: Attribution, positions: Sequence[Position]) -> bool:
        excused_s = self._excuses_s.get(attribution.cause)
        if excused_s is None:
            return False
        (silent_s,) = [
            position.pulse.since_progress_s
            for position in positions
            if position.pulse.rank == attribution.rank
        ]
        return silent_s < excused_s

    def _breach(self, attribution: Attribution, positions: Sequence[Position]) -> Breach:
        by_rank = {position.pulse.rank: position for position in positions}
        own = None if attribution.rank is None else self._silent.get(attribution.rank)
        # In a deadlock nobody's own phase is at fault, so any rank's hard limit counts.
        strongest = max(self._silent.values(), key=lambda breach: breach.is_actionable)
        basis = strongest if own is None or attribution.is_deadlock else own
        culprit = None if attribution.rank is None else by_rank.get(attribution.rank)
        peer = None if attribution.peer is None else by_rank.get(attribution.peer)
        pulse = None if culprit is None else culprit.pulse
        since_s = basis.statistic if pulse is None else pulse.since_progress_s
        return replace(
            basis,
            status=Status.BREACH,
            rank=attribution.rank,
            step=basis.step if pulse is None else pulse.step,
            phase=basis.phase if pulse is None else pulse.phase,
            statistic=since_s,
            message=attribution.sentence,
            evidence={
                **basis.evidence,
                "cause": attribution.cause.value,
                "seconds_since_progress": since_s,
                "stack": _stack(culprit),
                "peer": attribution.peer,
                "peer_stack": _stack(peer),
                "ranks": [_facts(position) for position in positions],
            },
        )


def _are_all_stopped(positions: Sequence[Position]) -> bool:
    """Whether somebody has stopped the whole job on purpose, as with Ctrl-Z."""
    present = [p.pulse for p in positions if p.pulse.phase is not Phase.DONE]
    return bool(present) and all(pulse.process_state == "T" for pulse in present)


def _stack(position: Position | None) -> list[Fact]:
    return [] if position is None else list(position.stack[:MAX_FRAMES])


def _facts(position: Position) -> dict[str, Fact]:
    pulse = position.pulse
    return {
        "rank": pulse.rank,
        "step": pulse.step,
        "phase": pulse.phase.name.lower(),
        "seconds_since_progress": round(pulse.since_progress_s, 3),
        "process_state": pulse.process_state,
        "waits_for_peers": waits_for_peers(position),
        "at": position.stack[0] if position.stack else None,
        "stack_file": position.stack_path,
    }
