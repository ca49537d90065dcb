"""The verdict: which clauses of a contract a run kept, told from its ledger alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from slav1.breach import Fact
from slav1.contract import Contract, Mode
from slav1.ledger import Entry
from slav1.saves import SaveRate

RECOVERY_RULE = "recovery_time"
"""Name of the clause about the time from a fault to the first step past it."""

_OPENS = ("breach", "incident_begin")
# The clause about saves is about a rate, so it is judged by bounds.
_SAVES_RULE = "ckpt_success"

_HALTS = ("hang", "liveness")


class Outcome(Enum):
    """What can be said about one clause."""

    MET = "met"
    """Watched for long enough, and never broken."""

    BREACHED = "breached"
    """Broken at least once, whether that was acted on or only observed."""

    INSUFFICIENT_DATA = "insufficient data"
    """Not seen broken, and not watched for long enough to say more."""

    NOT_EXERCISED = "not exercised"
    """Nothing happened that the clause is about, or it is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """The verdict on one clause."""

    rule: str
    """Name of the rule."""

    outcome: Outcome
    """What can be said about it."""

    message: str
    """One sentence for people: why."""

    mode: str | None = None
    """Mode of the rule in the contract; None for a rule that is not in it."""

    action: str | None = None
    """What a breach asks for, in small letters."""

    num_breaches: int = 0
    """Lines of the ledger that tell of a breach."""

    first_breach: Entry | None = None
    """The first of them."""

    num_samples: int | None = None
    """Events the rule was shown; None if the run did not say."""

    num_needed: int | None = None
    """Events after which its silence means something; None if the run did not say."""

    facts: Mapping[str, Fact] = field(default_factory=dict)
    """What else was counted, bounds included."""

    def to_entry(self, *, time_ns: int, attempt: int) -> Entry:
        """Returns the clause in the form of a ledger line."""
        first = self.first_breach
        return Entry(
            time_ns=time_ns,
            attempt=attempt,
            kind="verdict",
            rank=first.rank if first else None,
            step=first.step if first else None,
            phase=first.phase if first else None,
            rule=self.rule,
            statistic=first.statistic if first else None,
            limit=first.limit if first else None,
            unit=first.unit if first else None,
            mode=self.mode,
            action=self.action,
            message=self.message,
            evidence={
                "outcome": self.outcome.value,
                "num_breaches": self.num_breaches,
                "num_samples": self.num_samples,
                "num_needed": self.num_needed,
                **self.facts,
            },
        )


def verdicts(entries: Sequence[Entry], contract: Contract) -> list[Clause]:
    """Judges a run clause by clause.

    Args:
        entries: The ledger of the run, all attempts.
        contract: The contract as it was in force.

    Returns:
        One clause for each rule of the contract, one for the recovery time, and one
        for each further rule that the ledger tells a breach of.
    """
    clauses = [_clause(name, entries, contract) for name in contract.rules]
    clauses = [_with_bounds(each, entries, contract) for each in clauses]
    told = {entry.rule for entry in entries if entry.rule and entry.kind in _OPENS}
    others = sorted(told - set(contract.rules) - {RECOVERY_RULE})
    clauses += [_breached(name, _breaches(name, entries), {}) for name in others]
    return [*clauses, _recovery(entries, contract.recovery_within_s)]


def is_kept(clauses: Iterable[Clause]) -> bool:
    """Whether no clause was broken."""
    return all(clause.outcome is not Outcome.BREACHED for clause in clauses)


def _clause(name: str, entries: Sequence[Entry], contract: Contract) -> Clause:
    rule = contract.rules[name]
    head = {"mode": rule.mode.value, "action": rule.action.name.lower()}
    breaches = _breaches(name, entries)
    if breaches:
        return _breached(name, breaches, head)
    if rule.mode is Mode.OFF:
        return Clause(
            rule=name,
            outcome=Outcome.NOT_EXERCISED,
            message="It is off in this contract.",
            mode=head["mode"],
            action=head["action"],
        )
    return _unbroken(name, entries, head)


def _with_bounds(clause: Clause, entries: Sequence[Entry], contract: Contract) -> Clause:
    """What the saves in the ledger say; a breach that a rule found stays one."""
    if clause.rule != _SAVES_RULE or contract.rules[_SAVES_RULE].mode is Mode.OFF:
        return clause
    rate = SaveRate.of(entries, contract.rules[_SAVES_RULE].detector.target_ratio)  # type: ignore[attr-defined]
    if rate.num_saves == 0:
        return clause
    if clause.outcome is Outcome.BREACHED:
        return replace(clause, message=f"{clause.message} {rate.message}", facts=rate.to_facts())
    outcome = Outcome.BREACHED if rate.is_missed else Outcome.INSUFFICIENT_DATA
    return replace(
        clause,
        outcome=Outcome.MET if rate.is_kept else outcome,
        message=rate.message,
        num_samples=rate.num_saves,
        facts=rate.to_facts(),
    )


def _breached(name: str, breaches: Sequence[Entry], head: Mapping[str, str]) -> Clause:
    first = breaches[0]
    where = [f"rank {first.rank}"] if first.rank is not None else []
    where += [f"step {first.step}"] if first.step is not None else []
    place = f" First: {', '.join(where)}." if where else ""
    return Clause(
        rule=name,
        outcome=Outcome.BREACHED,
        message=f"{first.message or 'Its limit was crossed.'}{place}",
        mode=head.get("mode", first.mode),
        action=head.get("action", first.action),
        num_breaches=len(breaches),
        first_breach=first,
    )


def _unbroken(name: str, entries: Sequence[Entry], head: Mapping[str, str]) -> Clause:
    counts = _counts(name, entries)
    last_attempt = max((entry.attempt for entry in entries), default=0)
    # A memory does not outlive its attempt, so samples of two attempts don't add up.
    best = max(counts.values(), key=lambda count: count[0] - count[1], default=None)
    outcome, message = _judged(best if last_attempt in counts else None)
    return Clause(
        rule=name,
        outcome=outcome,
        message=message,
        mode=head["mode"],
        action=head["action"],
        num_samples=best[0] if best else None,
        num_needed=best[1] if best else None,
    )


def _judged(count: tuple[int, int] | None) -> tuple[Outcome, str]:
    if count is None:
        return Outcome.INSUFFICIENT_DATA, "The run ended without a count of this rule's samples."
    num_samples, num_needed = count
    if num_samples == 0:
        return Outcome.NOT_EXERCISED, "It was never shown anything it watches."
    if num_samples < num_needed:
        return (
            Outcome.INSUFFICIENT_DATA,
            f"{num_samples} samples seen; {num_needed} are needed to say anything.",
        )
    return Outcome.MET, f"{num_samples} samples, no breach."


def _recovery(entries: Sequence[Entry], within_s: float) -> Clause:
    breaches = _breaches(RECOVERY_RULE, entries)
    if breaches:
        return _breached(RECOVERY_RULE, breaches, {})
    times = [(seconds, entry) for entry in entries if (seconds := _recovery_s(entry)) is not None]
    if not times:
        return Clause(
            rule=RECOVERY_RULE,
            outcome=Outcome.NOT_EXERCISED,
            message="The run recovered from no fault.",
        )
    longest_s, _ = max(times, key=lambda time: time[0])
    late = [entry for seconds, entry in times if not seconds <= within_s]
    return Clause(
        rule=RECOVERY_RULE,
        outcome=Outcome.BREACHED if late else Outcome.MET,
        message=f"{'1 recovery' if len(times) == 1 else f'{len(times)} recoveries'}, the longest "
        f"in {longest_s:.1f} s; {within_s:.0f} s are allowed.",
        num_breaches=len(late),
        first_breach=late[0] if late else None,
        num_samples=len(times),
        num_needed=1,
    )


def _breaches(name: str, entries: Sequence[Entry]) -> list[Entry]:
    ours = [entry for entry in entries if entry.rule == name]
    breaches = [entry for entry in ours if entry.kind == "breach"]
    # A ledger may be cut between the two lines that an incident begins with.
    return breaches or [entry for entry in ours if entry.kind == "incident_begin"]


def _counts(name: str, entries: Sequence[Entry]) -> dict[int, tuple[int, int]]:
    """What each attempt said at its end: samples seen and samples needed."""
    counts = {}
    for entry in entries:
        if entry.kind != "verdict" or entry.rule != name:
            continue
        num_samples = entry.evidence.get("num_samples")
        num_needed = entry.evidence.get("num_needed")
        if isinstance(num_samples, int) and isinstance(num_needed, int):
            counts[entry.attempt] = (num_samples, num_needed)
    return counts


def _recovery_s(entry: Entry) -> float | None:
    seconds = entry.evidence.get("seconds")
    if not _is_recovery(entry) or isinstance(seconds, bool):
        return None
    return float(seconds) if isinstance(seconds, int | float) else None


def _is_recovery(entry: Entry) -> bool:
    # A rule that only logs may have an incident for hours; nothing had to recover then.
    # And an incident that ends at no step ended with its run.
    ends = (*_HALTS, RECOVERY_RULE)
    is_over = entry.kind == "incident_end" and entry.rule in ends and entry.step is not None
    return entry.kind == "restored" or is_over
