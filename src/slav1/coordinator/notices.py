"""What the coordinator says about the job itself: who is missing, silent, or a stranger."""

from collections.abc import Iterable, Mapping, Sequence

from slav1.breach import Breach
from slav1.coordinator.journal import Journal
from slav1.coordinator.membership import JOIN_NOTICE_S, NODE_SILENCE_S
from slav1.coordinator.recovery import Recovered
from slav1.named_ranks import numbers
from slav1.verdict import RECOVERY_RULE


def started(journal: Journal, level: str, *, world_size: int, num_nodes: int, origin: str) -> None:
    """A start of the run begins to be watched.

    Args:
        journal: Where it is written.
        level: Level of the contract.
        world_size: Ranks of the job.
        num_nodes: Nodes of the job.
        origin: Where the contract comes from, in sentences; empty if from code.
    """
    whom = f"{world_size} rank(s) on {num_nodes} node(s)"
    journal.note(
        "start",
        f"Watching {whom} by contract {level}. {origin}".strip(),
        evidence={"world_size": world_size, "num_nodes": num_nodes},
    )


def uneven_batches(journal: Journal, num_batches: Mapping[int, int]) -> None:
    """The ranks' data loaders differ in length.

    Args:
        journal: Where it is written.
        num_batches: Batches of an epoch, by rank, of those that know.
    """
    listed = ", ".join(f"rank {rank}: {num_batches[rank]}" for rank in sorted(num_batches))
    journal.note(
        "notice",
        f"The ranks have different numbers of batches ({listed}): those with more will "
        "wait for the others at the end of the epoch, for ever.",
        evidence={"num_batches": {str(rank): num for rank, num in num_batches.items()}},
    )


def ranks_missing(journal: Journal, ranks: Sequence[int]) -> None:
    """Some ranks have not joined in time."""
    journal.note(
        "notice",
        f"Ranks {numbers(ranks)} have not joined within {JOIN_NOTICE_S:g} s of the first one; "
        "the others will wait for them. Look at their output, and whether they run at all.",
        evidence={"missing": list(ranks)},
    )


def node_silent(journal: Journal, node: int, ranks: Sequence[int]) -> None:
    """A node says nothing. Its ranks may be well: that shows in whether others go on."""
    journal.note(
        "notice",
        f"The monitor of node {node} has said nothing for {NODE_SILENCE_S:g} s. Its ranks "
        f"({numbers(ranks)}) are not watched meanwhile; they count as lost if others wait for "
        "them.",
        evidence={"node": node, "ranks": list(ranks)},
    )


def node_back(journal: Journal, node: int) -> None:
    """A node that was silent is heard again."""
    message = f"The monitor of node {node} is heard again."
    journal.note("notice", message, evidence={"node": node})


def node_lost(node: int, ranks: Sequence[int]) -> Breach:
    """The breach of a node that is silent while others wait for it."""
    return Breach(
        rule="liveness",
        rank=ranks[0] if ranks else None,
        step=None,
        statistic=NODE_SILENCE_S,
        limit=NODE_SILENCE_S,
        unit="s",
        message=f"Node {node} (ranks {numbers(ranks)}) is lost: its monitor says nothing any "
        "more, and the other ranks do not go on.",
        evidence={"kind": "node_lost", "node": node, "ranks": list(ranks)},
    )


def wanted(rank: int, step: int | None, reason: str, onset_step: int | None) -> Breach:
    """What a rank's host asks a rollback for: no rule found it, the save itself did."""
    return Breach(
        rule="checkpoint",
        rank=rank,
        step=step,
        statistic=None,
        limit=None,
        unit="",
        message=reason,
        evidence={"first_step": onset_step},
    )


def left_out(journal: Journal, action: str, breach: Breach) -> None:
    """An action that lets training go on is not done, since no step can be agreed on.

    Args:
        journal: Where it is written.
        action: Name of the action.
        breach: What it was for.
    """
    journal.note(
        "notice",
        f"The {action} for {breach.rule} is left out, since not every rank can be told of it "
        "now: a node is silent, or some rank has not joined or is lost.",
        rank=breach.rank,
        step=breach.step,
        rule=breach.rule,
        evidence={"left_out": action},
    )


def strangers(journal: Journal, num: int) -> None:
    """Callers were refused at the coordinator's port."""
    journal.note(
        "notice",
        f"{num} connection(s) to the coordinator's port were refused: the caller has no key of "
        "this job. Training is not affected.",
        evidence={"num_refused": num},
    )


def rounds_dropped(journal: Journal, num: int) -> None:
    """Some steps never had a sample of every rank."""
    journal.note(
        "notice",
        f"{num} steps were not compared across ranks: some rank's sample of them never came.",
        evidence={"num_dropped": num},
    )


def copies(journal: Journal, told: Iterable[str]) -> None:
    """What is compared between ranks, and what is not."""
    for message in told:
        journal.note("notice", message, rule="replica_divergence")


def unusable(journal: Journal, rules: Iterable[str]) -> None:
    """Memories of a checkpoint don't fit the rules as they are now."""
    for name in rules:
        journal.note(
            "notice",
            f"The saved memory of rule {name} does not fit the rule as it is now (another variant "
            "or version); it starts afresh.",
            rule=name,
        )


def recovered(journal: Journal, how: Recovered) -> None:
    """The run is past a fault from which it had to go back."""
    fault = how.fault
    journal.note(
        "incident_end",
        f"Step {how.step} is the first one past step {fault.step}, at which {fault.rule} was "
        f"found: recovered in {how.seconds:.1f} s.",
        step=how.step,
        rule=RECOVERY_RULE,
        evidence={"seconds": how.seconds, "fault": fault.rule, "fault_step": fault.step},
    )
