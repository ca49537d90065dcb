"""From silent ranks to one incident: who holds up the job, and is it time to act.

A rank that waits for a slow save is as silent as one whose peer hangs. So a silence
opens an incident only when the rank at fault has overstepped the limit of its *own*
phase, or when every rank waits for another and none moved between two looks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slav1.breach import Breach, Fact, Status
from slav1.coordinator.attribution import Attribution, Cause, attribute, waits_for_peers
from slav1.coordinator.messages import Position
from slav1.phase import Phase

LOOK_EVERY_S = 0.5
"""Pause between two looks at all ranks while any is silent, in seconds."""

_FACTS = (Cause.LOST, Cause.LEFT)


class Stall:
    """Collects the silences of single ranks and judges them together."""

    def __init__(self, compile_limit_s: float) -> None:
        """Starts with no rank silent.

        Args:
            compile_limit_s: How long a rank may compile before that counts, in seconds.
        """
        self._compile_limit_s = compile_limit_s
        self._silent: dict[int, Breach] = {}
        self._asked_at_s = float("-inf")
        self._changes: Mapping[int, int] = {}
        self._reported: Breach | None = None
        self._all_stopped_at_s = float("-inf")

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
            The end of the incident, if this was its last silent rank.
        """
        assert breach.rank is not None, "each hang detector watches one rank"
        if breach.status is Status.BREACH:
            self._silent[breach.rank] = breach
            return None
        self._silent.pop(breach.rank, None)
        if self._silent or self._reported is None:
            return None
        over, self._reported = self._reported, None
        return replace(over, status=Status.RECOVERED, step=breach.step, message=breach.message)

    def forget(self, rank: int) -> None:
        """A rank left or is gone; its own silence no longer counts."""
        self._silent.pop(rank, None)

    def wants_look(self, now_s: float) -> bool:
        """Whether all ranks should be looked at now."""
        if not self._silent or now_s - self._asked_at_s < LOOK_EVERY_S:
            return False
        if self._reported is not None and self._reported.is_actionable:
            return False
        self._asked_at_s = now_s
        return True

    def judge(self, positions: Sequence[Position]) -> Breach | None:
        """Judges one look at all ranks.

        Returns:
            The incident, when it is first seen and again when it is time to act; None
            if there is nothing new to say.
        """
        if _are_all_stopped(positions):
            self._all_stopped_at_s = self._asked_at_s
            return None
        attribution = attribute(positions)
        changes = {position.pulse.rank: position.change for position in positions}
        stood_still, self._changes = changes == self._changes, changes
        own = self._silent.get(-1 if attribution.rank is None else attribution.rank)
        is_proved = own is not None or attribution.cause in _FACTS
        if attribution.is_deadlock or attribution.rank is None:
            is_proved = is_proved or stood_still
        if not self._silent or not is_proved or self._is_excused(attribution, positions):
            return None
        breach = self._breach(attribution, positions, own)
        if self._asked_at_s - self._all_stopped_at_s < (breach.limit or 0.0):
            return None
        if self._reported is not None and not breach.is_actionable:
            return None
        self._reported = breach if self._reported is None else replace(breach, rank=breach.rank)
        return breach

    def _is_excused(self, attribution: Attribution, positions: Sequence[Position]) -> bool:
        if attribution.cause is not Cause.COMPILING:
            return False
        silent_s = [p.pulse.since_progress_s for p in positions if p.pulse.rank == attribution.rank]
        return max(silent_s) < self._compile_limit_s

    def _breach(
        self, attribution: Attribution, positions: Sequence[Position], own: Breach | None
    ) -> Breach:
        # In a deadlock nobody's own phase is at fault, so any rank's hard limit counts.
        is_shared = own is None or attribution.is_deadlock
        strongest = max(self._silent.values(), key=lambda breach: breach.is_actionable)
        basis = strongest if is_shared else own
        assert basis is not None
        culprit = next((p for p in positions if p.pulse.rank == attribution.rank), None)
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
                "stack": [] if culprit is None else list(culprit.stack[:20]),
                "ranks": [_facts(position) for position in positions],
            },
        )


def _are_all_stopped(positions: Sequence[Position]) -> bool:
    """Whether somebody has stopped the whole job on purpose, as with Ctrl-Z."""
    present = [p.pulse for p in positions if p.pulse.phase is not Phase.DONE]
    return bool(present) and all(pulse.process_state == "T" for pulse in present)


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
