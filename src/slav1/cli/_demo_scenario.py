"""What ``sla demo`` can break, and what the contract must then find and do."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from slav1.ledger import Kind

FaultName: TypeAlias = Literal[
    "spike", "none", "nan", "corrupt", "hang", "kill", "straggler", "seed", "leak"
]
"""Faults of the demo."""

Ending: TypeAlias = Literal["finished", "left_out", "rolled_back", "restarted", "stopped"]
"""How a run goes on: ``finished`` makes its steps as if nothing were; ``left_out`` too, but
the weights don't change in one of them, which all ranks are told; ``rolled_back`` goes
back to a checkpoint in the running processes; ``restarted`` has every process ended and
started again from a checkpoint. All of these make all their steps; ``stopped`` ends in good
order right after a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One fault and the course that the run is expected to take."""

    fault: FaultName
    """Name on the command line."""

    injected: str
    """What is done to the run, for people."""

    inject: str | None
    """The fault as ``SLA_INJECT`` takes it; None if nothing is injected."""

    rank: int | None
    """Global rank that is hit and must be named; None if nothing is injected."""

    step: int | None
    """First step that is hit; None if nothing is injected."""

    rule: str | None
    """Rule that must find it; None if nothing must be found."""

    ending: Ending
    """How the run must go on."""

    found_by: Kind = "breach"
    """Kind of the ledger line by which it must be found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    step: int
    """First step that is hit: late enough for the rule to know what is usual."""

    steps_after: int
    """Steps that the run must go on for the fault to be found."""

    inject: str
    does: str
    rule: str
    ending: Ending
    found_by: Kind = "breach"
    rank: int | None = None
    """Global rank that is hit; None for rank 1 if there is one: it leaves rank 0, which
    often starts the others, alone."""


_PLANS: dict[FaultName, _Plan] = {
    "spike": _Plan(
        step=200,
        steps_after=50,
        inject="spike:rank={rank},step={step},steps=4",
        does="From step {step} on, rank {rank} gets 4 batches with wrong targets.",
        rule="loss_variance",
        ending="rolled_back",
    ),
    "nan": _Plan(
        step=120,
        steps_after=10,
        inject="nan:rank={rank},step={step}",
        does="In step {step} the loss of rank {rank} becomes NaN.",
        rule="non_finite",
        ending="left_out",
    ),
    "corrupt": _Plan(
        step=100,
        steps_after=60,
        inject="corrupt:rank={rank},step={step}",
        does="What rank {rank} writes into the first checkpoint from step {step} on reaches the "
        "disk with one bit flipped.",
        rule="ckpt_success",
        ending="finished",
        found_by="checkpoint_rejected",
        rank=0,
    ),
    "hang": _Plan(
        step=80,
        steps_after=10,
        inject="hang:rank={rank},step={step}",
        does="In step {step} rank {rank} goes into a loop and does not come back.",
        rule="hang",
        ending="restarted",
    ),
    "kill": _Plan(
        step=80,
        steps_after=10,
        inject="kill:rank={rank},step={step}",
        does="In step {step} rank {rank} is killed (SIGKILL).",
        rule="liveness",
        ending="restarted",
    ),
    "straggler": _Plan(
        step=260,
        steps_after=100,
        # So much that it stands out where others want the same cores.
        inject="straggler:rank={rank},step={step},factor=8",
        does="From step {step} on, the forward pass of rank {rank} takes 8 times as long.",
        rule="straggler",
        ending="finished",
    ),
    "seed": _Plan(
        step=0,
        steps_after=10,
        inject="seed:rank={rank},step={step}",
        does="Before step {step} rank {rank} gets weights as if drawn from another seed.",
        rule="seed_contract",
        ending="finished",
    ),
    "leak": _Plan(
        step=120,
        steps_after=580,
        inject="leak:rank={rank},step={step},mib=0.5",
        does="From step {step} on, rank {rank} keeps half a MiB of each step for ever.",
        rule="memory_drift",
        ending="stopped",
    ),
}

FAULTS: tuple[FaultName, ...] = (
    *("spike", "none", "nan", "corrupt", "hang", "kill", "straggler", "seed", "leak"),
)
"""Every fault, the default first."""

_NEEDS_OTHERS: dict[str, str] = {
    "straggler": "a rank is slow only beside others",
    "seed": "weights differ only from those of others",
}

USUAL_STEPS = 400
"""Optimizer steps of a run, or those that its fault needs if these are more."""

MAX_RANKS = 8
"""More processes than this make no demo faster or clearer."""


def usual_steps(fault: str) -> int:
    """Optimizer steps of a run with a fault unless the user says otherwise."""
    plan = _PLANS.get(fault)  # type: ignore[call-overload]
    return USUAL_STEPS if plan is None else max(USUAL_STEPS, plan.step + plan.steps_after)


def scenario(fault: str, *, num_ranks: int, num_steps: int) -> Scenario:
    """Plans one run of the demo.

    Args:
        fault: One of ``FAULTS``.
        num_ranks: Processes that train, 1 to ``MAX_RANKS``.
        num_steps: Optimizer steps of the run.

    Raises:
        ValueError: If one of them is not possible, or not with the others: in one line
            which option, what came and what is needed.
    """
    if fault not in FAULTS:
        raise ValueError(f"--fault {fault} must be one of {', '.join(FAULTS)}.")
    if not 1 <= num_ranks <= MAX_RANKS:
        raise ValueError(f"--ranks {num_ranks} must be 1 to {MAX_RANKS}.")
    if fault == "none":
        if num_steps < 1:
            raise ValueError(f"--steps {num_steps} must be at least 1.")
        return _NOTHING
    if fault in _NEEDS_OTHERS and num_ranks == 1:
        raise ValueError(f"--fault {fault} needs --ranks 2 or more: {_NEEDS_OTHERS[fault]}.")
    return _with_fault(fault, num_ranks=num_ranks, num_steps=num_steps)


_NOTHING = Scenario(
    fault="none",
    injected="Nothing is injected: the contract must keep quiet.",
    inject=None,
    rank=None,
    step=None,
    rule=None,
    ending="finished",
)


def _with_fault(fault: FaultName, *, num_ranks: int, num_steps: int) -> Scenario:
    plan = _PLANS[fault]
    needed = plan.step + plan.steps_after
    if num_steps < needed:
        raise ValueError(
            f"--steps {num_steps} is too few for --fault {fault}, which acts in step {plan.step}: "
            f"at least {needed} are needed."
        )
    rank = min(1, num_ranks - 1) if plan.rank is None else plan.rank
    return Scenario(
        fault=fault,
        injected=plan.does.format(rank=rank, step=plan.step),
        inject=plan.inject.format(rank=rank, step=plan.step),
        rank=rank,
        step=plan.step,
        rule=plan.rule,
        ending=plan.ending,
        found_by=plan.found_by,
    )
