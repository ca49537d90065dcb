"""Micro-batches that were run twice, as ledger lines tell of them, and what they show."""

from collections.abc import Mapping
from typing import Any

from slav1.breach import Breach, Status
from slav1.sample import Rerun

RULE = "replica_divergence"
"""Name of the rule."""

_WRONG = {
    "first": "The first run was wrong, by a third: all ranks have trained with its gradient",
    "second": "The second run was wrong, by a third: what training went on with is right",
    "unclear": "A third run is like neither of them",
}


def rerun_in(
    rule: str | None, rank: int | None, step: int | None, evidence: Mapping[str, Any]
) -> Rerun | None:
    """The second run of a micro-batch that a ledger line of a rank tells of.

    Args:
        rule: Rule of the line.
        rank: Its rank.
        step: Its step.
        evidence: Its evidence.

    Returns:
        None for a line about something else.
    """
    told = evidence.get("replay")
    if rule != RULE or not isinstance(told, Mapping) or rank is None or step is None:
        return None
    names = told.get("differing")
    return Rerun(
        rank=rank,
        step=step,
        micro_batch=_number(told.get("micro_batch")),
        num_compared=_number(told.get("num_compared")),
        num_differing=_number(told.get("num_differing")),
        differing=tuple(map(str, names)) if isinstance(names, list | tuple) else (),
        wrong=str(told.get("wrong", "")),
        is_exact=told.get("is_exact") is True,
        num_equal=_number(told.get("num_equal")),
    )


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def observe_rerun(
    num_differing: int, event: Rerun, *, equal_looks: int
) -> tuple[int, Breach | None]:
    """Judges a second run.

    Args:
        num_differing: Second runs of this rank that differed, in a row.
        event: The next one.
        equal_looks: Runs that must have been the same before one is acted on.

    Returns:
        How many differ in a row now, and what is to be told.
    """
    if not event.num_differing:
        return 0, _recovered(event) if num_differing else None
    num_differing += 1
    if num_differing & (num_differing - 1):
        # Told at the first one, the second, the fourth, the eighth ...
        return num_differing, None
    is_actionable = event.is_exact and event.wrong == "first" and event.num_equal >= equal_looks
    return num_differing, _breach(event, is_actionable=is_actionable)


def _breach(event: Rerun, *, is_actionable: bool) -> Breach:
    name = event.differing[0] if event.differing else "its gradients"
    more = event.num_differing - 1
    and_more = f" and {more} more tensor{'s' if more > 1 else ''}" if more else ""
    limit = "" if event.is_exact else " beyond what honest runs differ by"
    return Breach(
        rule=RULE,
        is_actionable=is_actionable,
        rank=event.rank,
        step=event.step,
        statistic=float(event.num_differing),
        limit=0.0,
        unit="tensors",
        message=f"Rank {event.rank} ran micro-batch {event.micro_batch} of step {event.step} "
        f"again and computed {name}{and_more} otherwise{limit}. "
        f"{_WRONG.get(event.wrong, 'Which run was wrong is not known')}. Suspect its processor or "
        "memory.",
        evidence={
            "kind": "replay",
            "parameter": _parameter_in(event),
            "differing": list(event.differing),
            "micro_batch": event.micro_batch,
            "wrong": event.wrong,
            "is_exact": event.is_exact,
            "num_equal": event.num_equal,
            "first_step": event.step,
            # Whatever computed wrongly, it was not the data.
            "are_batches_good": True,
        },
    )


def _parameter_in(event: Rerun) -> str:
    """The first parameter among what differs; empty if only outputs and inputs do."""
    names = [one for one in event.differing if not one.startswith(("output", "gradient of input"))]
    return names[0] if names else ""


def _recovered(event: Rerun) -> Breach:
    return Breach(
        rule=RULE,
        status=Status.RECOVERED,
        is_actionable=False,
        rank=event.rank,
        step=event.step,
        statistic=0.0,
        limit=0.0,
        unit="tensors",
        message=f"Rank {event.rank} computes the same again when it runs a micro-batch twice.",
    )
