"""What the coordinator writes down: ledger lines, and the same for people on stderr."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from slav1.breach import Breach, Fact, Status
from slav1.contract import Rule
from slav1.coordinator.run_ledger import RunLedger
from slav1.coordinator.say import say
from slav1.decision import Action, Decision
from slav1.ledger import Entry, Kind
from slav1.phase import Phase
from slav1.policy import Verdict

_SHOWN = ("breach", "decision", "restored", "checkpoint_rejected", "first_exception", "notice")


class Journal:
    """Writes the ledger of one attempt and keeps the books on open incidents."""

    def __init__(self, ledger: RunLedger, attempt: int) -> None:
        """Takes over the ledger.

        Args:
            ledger: Where the lines go; closed by :meth:`close`.
            attempt: Start of the run that all lines belong to, from 0.
        """
        self._attempt = attempt
        self._ledger = ledger
        self._open: dict[tuple[str, int | None], int] = {}

    def note(
        self,
        kind: Kind,
        message: str,
        *,
        rank: int | None = None,
        step: int | None = None,
        phase: Phase | None = None,
        rule: str | None = None,
        evidence: Mapping[str, Fact] | None = None,
    ) -> None:
        """Writes a line that judges nothing."""
        self._write(
            Entry(
                time_ns=time.time_ns(),
                attempt=self._attempt,
                rank=rank,
                step=step,
                phase=_name(phase),
                kind=kind,
                rule=rule,
                message=message,
                evidence=evidence or {},
            )
        )

    def breach(self, breach: Breach, rule: Rule, verdict: Verdict) -> None:
        """Writes what a detector found, and opens or closes its incident."""
        key = breach.rule, breach.rank
        if breach.status is Status.RECOVERED:
            self._close(key, breach)
            return
        entry = Entry(
            time_ns=time.time_ns(),
            attempt=self._attempt,
            rank=breach.rank,
            step=breach.step,
            phase=_name(breach.phase),
            kind="breach" if breach.status is Status.BREACH else "notice",
            rule=breach.rule,
            statistic=breach.statistic,
            limit=breach.limit,
            unit=breach.unit,
            mode=rule.mode.value,
            action=(verdict.would_have or verdict.action).name.lower(),
            message=breach.message,
            evidence=_evidence(breach, verdict),
        )
        if breach.status is Status.BREACH and key not in self._open:
            self._open[key] = entry.time_ns
            self._write(replace(entry, kind="incident_begin"))
        self._write(entry)

    def end_incidents(
        self, which: Callable[[str, int | None], bool], step: int, message: str
    ) -> None:
        """Ends open incidents that nobody will tell the end of.

        Args:
            which: Whether the incident of a rule and a rank is one of them.
            step: Step at which they end.
            message: Why they end.
        """
        for key in [key for key in self._open if which(*key)]:
            self._end_incident(key, step, message)

    def decision(self, decision: Decision, message: str, evidence: Mapping[str, Fact]) -> None:
        """Writes what is going to be done, before it is."""
        self._write(self._about(decision, "decision", decision.rank, message, evidence))

    def action(
        self, decision: Decision, *, rank: int | None, message: str, evidence: Mapping[str, Fact]
    ) -> None:
        """Writes what was done."""
        self._write(self._about(decision, "action", rank, message, evidence))

    def close(self) -> None:
        """Ends every open incident and closes the ledger."""
        for key in list(self._open):
            self._end_incident(key, None, "The run ended.")
        self._ledger.close()

    def _close(self, key: tuple[str, int | None], breach: Breach) -> None:
        if key in self._open:
            self._end_incident(key, breach.step, breach.message)

    def _end_incident(self, key: tuple[str, int | None], step: int | None, message: str) -> None:
        rule, rank = key
        lasted_s = (time.time_ns() - self._open.pop(key)) * 1e-9
        evidence: dict[str, Fact] = {"seconds": round(lasted_s, 3)}
        self.note("incident_end", message, rank=rank, step=step, rule=rule, evidence=evidence)

    def _about(
        self,
        decision: Decision,
        kind: Kind,
        rank: int | None,
        message: str,
        evidence: Mapping[str, Fact],
    ) -> Entry:
        return Entry(
            time_ns=time.time_ns(),
            attempt=self._attempt,
            rank=rank,
            step=decision.step,
            kind=kind,
            rule=decision.rule,
            mode="enforce",
            action=Action(decision.action).name.lower(),
            message=message,
            evidence={"decision": decision.number, **evidence},
        )

    def _write(self, entry: Entry) -> None:
        self._ledger.write(entry)
        # What only records is for the ledger; people have nothing to do about it.
        if entry.kind in _SHOWN and entry.evidence.get("is_quiet") is not True:
            say(entry.message or "")


def _name(phase: Phase | None) -> str | None:
    return None if phase is None else phase.name.lower()


def _evidence(breach: Breach, verdict: Verdict) -> dict[str, Fact]:
    evidence: dict[str, Fact] = {**breach.evidence, "is_actionable": breach.is_actionable}
    if breach.arl0 is not None:
        evidence["arl0"] = breach.arl0
    if breach.action is not None:
        evidence["asks_for"] = breach.action
    if verdict.would_have is not None:
        evidence["would_have"] = verdict.would_have.name.lower()
    if verdict.policy is not None:
        evidence["policy"] = dict(verdict.policy)
    return evidence
