"""Running the demo's job from start to last word, and showing it."""

import json
import os
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from slav1.cli._demo_interrupts import Interrupts
from slav1.cli._demo_job import Job, environment_of_job
from slav1.cli._demo_ledger import LedgerTail
from slav1.cli._demo_plan import RunPlan
from slav1.cli._demo_screen import print_story, summary_of
from slav1.cli._demo_story import tell
from slav1.cli._demo_view import JsonView, LiveView, PlainView, View, console_for_demo
from slav1.cli._demo_watch import Watch
from slav1.contract import Contract
from slav1.ledger import Entry
from slav1.verdict import Clause, verdicts

UNEXPECTED = 3
"""Exit status when something is not as the fault calls for."""

_TORCHRUN = ("-m", "torch.distributed.run")

SIGNALLED = 128
"""Exit status after a signal, to which its number is added."""


def carry_out(plan: RunPlan, interrupts: Interrupts, *, as_json: bool) -> int:
    """Runs the job of a plan, shows it, and leaves no process behind.

    Args:
        plan: What to run.
        interrupts: Looked at often; an interrupt ends the job.
        as_json: Whether to print JSON only.

    Returns:
        The exit status of the demo.
    """
    started_ns = time.time_ns()
    job = Job(
        _command(plan),
        dict(plan.backend.environment)
        | environment_of_job(os.environ, run_id=plan.run_id, inject=plan.scenario.inject),
        plan.log,
    )
    console = console_for_demo()
    view = _view(console, as_json=as_json)
    watch = Watch(
        job=job, ledger=LedgerTail(plan.ledger), view=view, plan=plan, started_ns=started_ns
    )
    try:
        ending = watch.until_gone(interrupts)
    finally:
        job.end()
        view.close()
    if ending is None:
        print("\nsla demo: interrupted; every process of the job was ended.", file=sys.stderr)
        return SIGNALLED + (interrupts.number or 0)
    entries = watch.ledger.entries
    story = tell(plan.scenario, entries, ending, num_ranks=plan.num_ranks)
    if as_json:
        print(json.dumps(summary_of(story, plan)), flush=True)
    else:
        print_story(console, story, _clauses(plan, entries), plan)
    return 0 if story.is_as_expected else UNEXPECTED


def _command(plan: RunPlan) -> list[str]:
    options = {"--ranks": plan.num_ranks, "--steps": plan.num_steps, "--run-dir": plan.out}
    words = [str(word) for option in options.items() for word in option]
    job = ["-m", plan.backend.module, *words]
    # A host's own launcher starts nothing twice.
    is_restarted = plan.scenario.ending == "restarted"
    if not is_restarted and (plan.backend.starts_ranks or plan.num_ranks == 1):
        return [sys.executable, *job]
    agent = ["--standalone", f"--nproc-per-node={plan.num_ranks}", "--max-restarts"]
    return [sys.executable, *_TORCHRUN, *agent, str(int(is_restarted)), *job]


def _view(console: Console, *, as_json: bool) -> View:
    if as_json:
        return JsonView()
    return LiveView(console) if console.is_terminal else PlainView(console)


def _clauses(plan: RunPlan, entries: Sequence[Entry]) -> list[Clause]:
    in_force = plan.folder / "contract.yaml"
    return verdicts(entries, Contract.load(in_force)) if in_force.exists() else []
