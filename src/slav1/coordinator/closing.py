"""The last lines of a ledger: what each rule saw, and how the run ended."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from slav1.contract import Contract, Mode
from slav1.coordinator import notices
from slav1.coordinator.decisions import Decisions
from slav1.coordinator.job_guard import JobGuard
from slav1.coordinator.journal import Journal
from slav1.coordinator.messages import FirstException, NodeDone


def write_counts(
    journal: Journal,
    contract: Contract,
    num_seen: Mapping[str, int],
    nodes: Iterable[NodeDone] = (),
) -> None:
    """Writes what the verdict needs to know about rules that found nothing.

    Args:
        journal: Where it is written.
        contract: The contract in force.
        num_seen: Samples that each rule of the coordinator saw.
        nodes: Last words of the nodes, with the counts of their own rules.
    """
    counts = Counter(num_seen)
    num_lost = 0
    for done in nodes:
        counts.update(done.num_seen)
        num_lost += done.num_lost
    if num_lost:
        journal.note(
            "notice",
            f"{num_lost} steps were overwritten before the monitor could read them.",
            evidence={"num_lost": num_lost},
        )
    for name, rule in contract.rules.items():
        if rule.mode is not Mode.OFF:
            needed = rule.detector.NUM_SAMPLES_NEEDED
            journal.note(
                "verdict",
                f"Rule {name} saw {counts[name]} samples; it needs {needed}.",
                rule=name,
                evidence={"num_samples": counts[name], "num_needed": needed},
            )


def write_end(
    journal: Journal,
    contract: Contract,
    guard: JobGuard,
    nodes: Iterable[NodeDone],
    word: str,
) -> None:
    """Writes the last lines of an attempt, and closes the journal.

    Args:
        journal: Where they are written.
        contract: The contract in force.
        guard: The rules of all ranks, with what they saw.
        nodes: Last words of the nodes.
        word: How it ended, in one sentence.
    """
    if guard.num_dropped:
        notices.rounds_dropped(journal, guard.num_dropped)
    write_counts(journal, contract, guard.num_seen, nodes)
    journal.note("end", word)
    journal.close()


def last_word(
    decisions: Decisions,
    exception: FirstException | None,
    lost: Collection[int],
    *,
    is_complete: bool,
) -> str:
    """Says in one sentence how a run ended.

    Args:
        decisions: What was decided.
        exception: The first exception that left training, if one did.
        lost: Ranks that went without a goodbye.
        is_complete: Whether every rank had joined.
    """
    ending, stopped = decisions.ending, decisions.stopped
    if ending is not None:
        return f"The contract ended the job: {ending.reason}"
    if stopped is not None:
        return f"The contract stopped training at step {stopped.step}: {stopped.reason}"
    if exception is not None:
        return f"Training ended by an exception on rank {exception.rank}."
    if lost:
        return f"Training ended after ranks {sorted(lost)} were lost."
    if not is_complete:
        return "The run ended before every rank had joined."
    return "Training ended."
