"""``sla verdict``: which clauses a run kept."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from slav1.cli._errors import CommandLineError
from slav1.cli._output import print_note, print_table
from slav1.cli._run_folder import LEDGER, contract_of, entries_of, find_run
from slav1.verdict import Clause, Outcome, is_kept, verdicts

BREACHED = 3
"""Exit status if a clause was broken."""

_STYLES = {Outcome.MET: "green", Outcome.BREACHED: "bold red", Outcome.INSUFFICIENT_DATA: "yellow"}


def verdict(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="A run folder, or the one that holds it.")
    ],
    contract: Annotated[
        Path | None, typer.Option(help="Judge by this contract, not by the run's own.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a clause, as in the ledger.")
    ] = False,
) -> None:
    """Say clause by clause what a run kept.

    All attempts count. Given a folder of runs, the newest is meant. Exit status: 0 if no clause
    was broken, 3 if one was, 2 if there is no run, or nothing left of its ledger.
    """
    run = find_run(run_dir)
    entries = entries_of(run)
    if not entries:
        raise CommandLineError(
            f"{run / LEDGER} holds no line that reads, so there is nothing to judge: was the disk "
            "full, or has the run only just begun?"
        )
    clauses = verdicts(entries, contract_of(run, contract))
    if as_json:
        time_ns, attempt = entries[-1].time_ns, max(entry.attempt for entry in entries)
        for clause in clauses:
            print(clause.to_entry(time_ns=time_ns, attempt=attempt).to_json())
    else:
        _print(run, clauses)
    raise typer.Exit(0 if is_kept(clauses) else BREACHED)


def _print(run: Path, clauses: list[Clause]) -> None:
    print_table(["clause", "verdict", "mode", "why"], (_row(clause) for clause in clauses))
    num_broken = sum(clause.outcome is Outcome.BREACHED for clause in clauses)
    print_note(f"{run}: {num_broken} of {len(clauses)} clauses broken.")


def _row(clause: Clause) -> list[str | Text]:
    outcome = Text(clause.outcome.value, style=_STYLES.get(clause.outcome, ""))
    return [clause.rule, outcome, clause.mode or "-", clause.message]
