"""``sla demo``: trains a small model, breaks it on purpose, shows what the contract does."""

from pathlib import Path
from typing import Annotated

import typer

from slav1.cli._demo_interrupts import noted_interrupts
from slav1.cli._demo_plan import BACKENDS, RunPlan, plan_run
from slav1.cli._demo_scenario import FAULTS, MAX_RANKS, usual_steps
from slav1.cli._errors import CommandLineError


def demo(
    fault: Annotated[str, typer.Option(help=f"What goes wrong: {', '.join(FAULTS)}.")] = "spike",
    ranks: Annotated[int, typer.Option(help=f"Processes to train with, 1 to {MAX_RANKS}.")] = 2,
    backend: Annotated[
        str, typer.Option(help=f"Host framework: {', '.join(BACKENDS)}.")
    ] = "lightning",
    out: Annotated[Path, typer.Option(help="Folder for the files of the run.")] = Path("sla_runs"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the ledger and a summary, one object a line.")
    ] = False,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps of the run: 400, or what the fault needs.")
    ] = None,
) -> None:
    """Train a small model under the contract, break it on purpose, and show what happens.

    Exit status: 0 if what was found and done is what the fault calls for, 3 if it is not,
    2 for a mistake on the command line, 130 after Ctrl-C.
    """
    with noted_interrupts() as interrupts:
        try:
            num_steps = usual_steps(fault) if steps is None else steps
            plan = plan_run(
                fault=fault, num_ranks=ranks, backend=backend, out=out, num_steps=num_steps
            )
        except (ValueError, OSError) as error:
            raise CommandLineError(str(error)) from None
        if not as_json:
            _print_head(plan)
        # Imported only now: the first lines on the screen must not wait for it.
        from slav1.cli._demo_run import carry_out

        status = carry_out(plan, interrupts, as_json=as_json)
    raise typer.Exit(status)


def _print_head(plan: RunPlan) -> None:
    ranks = "1 process trains" if plan.num_ranks == 1 else f"{plan.num_ranks} processes train"
    print(f"sla demo: {ranks} a small character-level transformer on this CPU,")
    print(f"with {plan.backend.title}, on the source text of Python's standard library.")
    print(plan.scenario.injected)
    print(f"Files of this run: {plan.folder}\n", flush=True)
