"""``sla demo``: trains a small model, breaks it on purpose, shows what the contract does."""

import json
import os
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slav1.cli._demo_job import Interrupts, Job, environment_of_job, noted_interrupts
from slav1.cli._demo_ledger import LedgerTail
from slav1.cli._demo_scenario import FAULTS, MAX_RANKS, Scenario, scenario
from slav1.cli._demo_screen import print_story, summary_of
from slav1.cli._demo_story import Story, tell
from slav1.cli._demo_view import JsonView, LiveView, PlainView, View, console_for_demo
from slav1.cli._demo_watch import Watch
from slav1.contract import Contract
from slav1.ledger import Entry
from slav1.verdict import Clause, verdicts

UNEXPECTED = 3
"""Exit status when something is not as the fault calls for."""

USAGE = 2
"""Exit status after a mistake on the command line."""

SIGNALLED = 128
"""Exit status after a signal, to which its number is added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the demo as it was asked for."""

    scenario: Scenario
    """What is injected."""

    num_ranks: int
    """Processes that train."""

    num_steps: int
    """Optimizer steps to make."""

    out: Path
    """Folder that gets a folder for this run."""

    run_id: str
    """Name of that folder."""

    @property
    def folder(self) -> Path:
        """Folder of this run."""
        return self.out / self.run_id

    @property
    def log(self) -> Path:
        """File for what the job prints."""
        return self.folder / "output.log"

    @property
    def command(self) -> list[str]:
        """Program and arguments of the job."""
        options = {"--ranks": self.num_ranks, "--steps": self.num_steps, "--run-dir": self.out}
        words = [str(word) for option in options.items() for word in option]
        return [sys.executable, "-m", "sla_lightning.demo", *words]


def demo(
    fault: Annotated[str, typer.Option(help=f"What goes wrong: {', '.join(FAULTS)}.")] = "spike",
    ranks: Annotated[int, typer.Option(help=f"Processes to train with, 1 to {MAX_RANKS}.")] = 2,
    backend: Annotated[str, typer.Option(help="Host framework: lightning.")] = "lightning",
    out: Annotated[Path, typer.Option(help="Folder for the files of the run.")] = Path("sla_runs"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the ledger and a summary, one object a line.")
    ] = False,
    steps: Annotated[int, typer.Option(help="Optimizer steps of the run.")] = 400,
) -> None:
    """Train a small model under the contract, break it on purpose, and show what happens.

    Exit status: 0 if what was found and done is what the fault calls for, 3 if it is not,
    2 for a mistake on the command line, 130 after Ctrl-C.
    """
    try:
        run = plan_run(fault=fault, num_ranks=ranks, backend=backend, out=out, num_steps=steps)
    except (ValueError, OSError) as error:
        print(f"sla demo: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    # Signals are noted from here on, so that no moment is left in which one could come
    # between the start of the job and the code that ends it.
    with noted_interrupts() as interrupts:
        status = _carried_out(run, interrupts, as_json=as_json)
    raise typer.Exit(status)


def plan_run(*, fault: str, num_ranks: int, backend: str, out: Path, num_steps: int) -> Run:
    """Checks what was asked for and makes the folder of the run.

    Args:
        fault: Name of a fault.
        num_ranks: Processes to train with.
        backend: Name of the host framework.
        out: Folder for all runs.
        num_steps: Optimizer steps to make.

    Raises:
        ValueError: If the options are not possible: in one line which, and what is needed.
        OSError: If the folder can't be made or written to, likewise.
    """
    if backend != "lightning":
        raise ValueError(f"--backend {backend} must be lightning, the only one so far.")
    run = Run(
        scenario=scenario(fault, num_ranks=num_ranks, num_steps=num_steps),
        num_ranks=num_ranks,
        num_steps=num_steps,
        out=out.absolute(),
        run_id=f"demo-{fault}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}",
    )
    try:
        run.folder.mkdir(parents=True)
        run.log.touch()
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"--out {out} must be a folder that can be written to: {reason}.") from error
    return run


def _carried_out(run: Run, interrupts: Interrupts, *, as_json: bool) -> int:
    """Runs and shows everything; returns the exit status."""
    console = console_for_demo()
    if not as_json:
        _print_head(console, run)
    started_ns = time.time_ns()
    environment = environment_of_job(os.environ, run_id=run.run_id, inject=run.scenario.inject)
    job = Job(run.command, environment, run.log)
    view = _view(console, as_json=as_json)
    watch = Watch(
        job=job,
        ledger=LedgerTail(run.folder / "ledger.jsonl"),
        view=view,
        fault=run.scenario,
        num_ranks=run.num_ranks,
        num_steps=run.num_steps,
        started_ns=started_ns,
    )
    try:
        ending = watch.until_gone(interrupts)
    finally:
        job.end()
        view.close()
    if ending is None:
        print("\nsla demo: interrupted; every process of the job was ended.", file=sys.stderr)
        return SIGNALLED + (interrupts.number or 0)
    story = tell(run.scenario, watch.ledger.entries, ending, num_ranks=run.num_ranks)
    _print_end(console, story, run, watch.ledger.entries, as_json=as_json)
    return 0 if story.is_as_expected else UNEXPECTED


def _view(console: Console, *, as_json: bool) -> View:
    if as_json:
        return JsonView()
    return LiveView(console) if console.is_terminal else PlainView(console)


def _print_head(console: Console, run: Run) -> None:
    console.print(
        f"sla demo: {run.num_ranks} rank(s) train a small character-level transformer on the "
        f"source of Python's standard library, with PyTorch Lightning on the CPU."
    )
    console.print(f"{run.scenario.injected} Everything goes to {run.folder}", soft_wrap=True)
    sys.stdout.flush()


def _print_end(
    console: Console, story: Story, run: Run, entries: Sequence[Entry], *, as_json: bool
) -> None:
    if as_json:
        print(json.dumps(summary_of(story, folder=run.folder, log=run.log)), flush=True)
    else:
        print_story(console, story, _clauses(run, entries), folder=run.folder, log=run.log)


def _clauses(run: Run, entries: Sequence[Entry]) -> list[Clause]:
    in_force = run.folder / "contract.yaml"
    return verdicts(entries, Contract.load(in_force)) if in_force.exists() else []
