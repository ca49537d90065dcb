"""What a run of the demo came to, put together from its ledger and its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slav1.cli._demo_scenario import Scenario
from slav1.ledger import Entry
from slav1.verdict import RECOVERY_RULE

_WANTED = {
    "left_out": ("skip_batches", "leave out one update"),
    "rolled_back": ("rollback", "go back to a checkpoint"),
    "stopped": ("stop", "stop after a checkpoint"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the job's processes ended."""

    exit_status: int | None
    """Exit status of rank 0; negative if a signal ended it, None if we ended it."""

    num_left: int
    """Processes of the job that were still there and that we had to end."""

    fault_began_ns: int | None = None
    """When the step that was hit began, on the wall clock, in nanoseconds; None if it was
    not seen."""

    given_up: str | None = None
    """Why we ended the job ourselves; None if it ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What was found and done, and whether it is what the fault calls for."""

    scenario: Scenario
    """What was injected and expected."""

    ending: Ending
    """How the processes ended."""

    found: Entry | None
    """First line that tells of the expected finding since the fault began; if none was
    expected, first breach of any rule that is enforced."""

    others: tuple[Entry, ...]
    """First breach of each other rule: other things that were true of this run."""

    found_after_s: float | None
    """Time from the start of the step that was hit to that breach, in seconds."""

    decision: Entry | None
    """First decision about what training does."""

    decided_after_s: float | None
    """Time from the start of the step that was hit to the decision, in seconds."""

    acted_at: Mapping[int, int]
    """Step at whose end each rank carried the first decision out, by rank."""

    recovered: Entry | None
    """Line about the first step past the fault, if the run had to go back."""

    recovered_after_s: float | None
    """Time from the fault to the end of that step, in seconds."""

    first_exception: Entry | None
    """First exception that left training on any rank."""

    problems: tuple[str, ...]
    """What is not as expected, in sentences; empty if all is."""

    @property
    def is_as_expected(self) -> bool:
        """Whether everything is as the fault calls for."""
        return not self.problems

    @property
    def stack(self) -> tuple[str, ...]:
        """Python stack of the rank at fault, innermost call first; empty if none was taken."""
        frames = self.found.evidence.get("stack") if self.found else None
        return tuple(str(frame) for frame in frames) if isinstance(frames, list) else ()


def tell(scenario: Scenario, entries: Sequence[Entry], ending: Ending, *, num_ranks: int) -> Story:
    """Puts the story of a run together.

    Args:
        scenario: What was injected.
        entries: The ledger.
        ending: How the processes ended.
        num_ranks: Processes that trained.
    """
    breaches = [entry for entry in entries if entry.kind == "breach"]
    found = next((entry for entry in entries if _is_meant(scenario, entry)), None)
    recovered = next((entry for entry in entries if _tells_of_recovery(entry)), None)
    decision = next((entry for entry in entries if _decides_on_training(entry)), None)
    acted_at = _steps_of_actions(entries)
    problems = [
        *_problems_of_finding(scenario, found, breaches, num_ranks),
        *_problems_of_acting(scenario, decision, acted_at, num_ranks),
        *_problems_of_recovery(scenario, entries, found, recovered),
        *_problems_of_ending(ending),
    ]
    if not entries:
        problems.insert(0, "The run left no ledger: see the output of the job for the reason.")
    elif all(entry.kind != "end" for entry in entries):
        problems.append("The ledger does not tell the end of the run: its writer was cut off.")
    return Story(
        scenario=scenario,
        ending=ending,
        found=found,
        others=_first_of_others(breaches, found),
        found_after_s=_seconds_to(found, ending),
        decision=decision,
        decided_after_s=_seconds_to(decision, ending),
        acted_at=acted_at,
        recovered=recovered,
        recovered_after_s=None if recovered is None else _seconds(recovered),
        first_exception=next((e for e in entries if e.kind == "first_exception"), None),
        problems=tuple(problems),
    )


def _seconds_to(entry: Entry | None, ending: Ending) -> float | None:
    if entry is None or ending.fault_began_ns is None:
        return None
    return (entry.time_ns - ending.fault_began_ns) * 1e-9


def _is_meant(scenario: Scenario, entry: Entry) -> bool:
    if entry.kind != scenario.found_by:
        return False
    if scenario.rule is None:
        return entry.mode == "enforce"
    is_early = entry.step is not None and entry.step < (scenario.step or 0)
    return entry.rule in (scenario.rule, None) and not is_early


def _decides_on_training(entry: Entry) -> bool:
    # Writers that are slowed down are none of training's business.
    return entry.kind == "decision" and entry.action != "throttle_io"


def _tells_of_recovery(entry: Entry) -> bool:
    return entry.rule == RECOVERY_RULE and entry.kind == "incident_end"


def _seconds(entry: Entry) -> float | None:
    seconds = entry.evidence.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


def _first_of_others(breaches: Sequence[Entry], found: Entry | None) -> tuple[Entry, ...]:
    first: dict[str | None, Entry] = {}
    for breach in breaches:
        if found is None or breach.rule != found.rule:
            first.setdefault(breach.rule, breach)
    return tuple(first.values())


def _steps_of_actions(entries: Sequence[Entry]) -> dict[int, int]:
    steps: dict[int, int] = {}
    for entry in entries:
        step = entry.evidence.get("at_step", entry.step)
        if entry.kind == "action" and entry.rank is not None and isinstance(step, int):
            steps.setdefault(entry.rank, step)
    return steps


def _problems_of_finding(
    scenario: Scenario, found: Entry | None, breaches: Sequence[Entry], num_ranks: int
) -> list[str]:
    if scenario.rule is None:
        return [f"Nothing was injected, but this was found: {found.message}"] if found else []
    if found is None:
        early = [each for each in breaches if each.rule == scenario.rule]
        return [
            _nothing_found(scenario, early[0]) if early else f"Rule {scenario.rule} found nothing."
        ]
    # Rules that compare ranks name none where there is only one; a checkpoint is of all.
    needs_none = num_ranks == 1 or scenario.found_by != "breach"
    if found.rank != scenario.rank and not (needs_none and found.rank is None):
        return [f"Rank {scenario.rank} was hit, but rank {found.rank} was named."]
    return []


def _nothing_found(scenario: Scenario, early: Entry) -> str:
    return (
        f"Rule {scenario.rule} found nothing after the fault, but rank {early.rank} in step "
        f"{early.step}, before it. Is something else at work on this machine? Try again when it "
        "is quieter."
    )


def _problems_of_acting(
    scenario: Scenario, decision: Entry | None, acted_at: Mapping[int, int], num_ranks: int
) -> list[str]:
    if scenario.ending == "finished":
        return [f"Training was to go on, but: {decision.message}"] if decision else []
    if decision is None:
        return ["Nothing was decided."]
    if scenario.ending == "restarted":
        return []
    wanted, meaning = _WANTED[scenario.ending]
    if decision.action != wanted:
        return [f"The run was to {meaning}, but the decision was {decision.action}."]
    return _problems_of_acting_together(acted_at, num_ranks)


def _problems_of_acting_together(acted_at: Mapping[int, int], num_ranks: int) -> list[str]:
    if sorted(acted_at) != list(range(num_ranks)):
        return [f"{num_ranks} ranks were to act; those that did: {sorted(acted_at)}."]
    if len(set(acted_at.values())) > 1:
        return [f"The ranks did not act at the same step: {dict(acted_at)}."]
    return []


def _problems_of_recovery(
    scenario: Scenario, entries: Sequence[Entry], found: Entry | None, recovered: Entry | None
) -> list[str]:
    if scenario.ending == "stopped":
        return _problems_of_stopping(entries)
    if scenario.ending not in ("finished", "left_out"):
        return [] if recovered else ["The run made no step past the one that was hit."]
    if found is None or scenario.found_by != "checkpoint_rejected":
        return []
    later = entries[entries.index(found) :]
    if any(entry.kind == "checkpoint_committed" for entry in later):
        return []
    return ["No good checkpoint followed the bad one."]


def _problems_of_stopping(entries: Sequence[Entry]) -> list[str]:
    """Whether the last thing before the decision was a checkpoint that counts."""
    kinds = [entry.kind for entry in entries if entry.kind in ("checkpoint_committed", "decision")]
    if "decision" in kinds and "checkpoint_committed" in kinds[: kinds.index("decision")]:
        return []
    return ["No checkpoint was committed before the run stopped."]


def _problems_of_ending(ending: Ending) -> list[str]:
    problems = [] if ending.given_up is None else [ending.given_up]
    if ending.exit_status not in (None, 0):
        problems.append(f"The job ended with status {ending.exit_status}; it must be 0.")
    if ending.num_left:
        problems.append(f"{ending.num_left} processes of the job were left and had to be ended.")
    return problems
