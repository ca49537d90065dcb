"""The last screen of ``sla demo``: what was injected, found and done, and the verdict."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from slav1.cli._demo_plan import RunPlan
from slav1.cli._demo_story import Story
from slav1.verdict import Clause, Outcome

MAX_FRAMES = 8
"""Innermost frames of a stack that are shown."""

NUM_LOG_LINES = 12
"""Last lines of the job's output that are shown when something is not as expected."""

_STYLES = {Outcome.MET: "green", Outcome.BREACHED: "bold red"}


def print_story(console: Console, story: Story, clauses: Sequence[Clause], plan: RunPlan) -> None:
    """Prints everything that is worth knowing after the run.

    Args:
        console: Where to.
        story: What happened.
        clauses: The verdict on each clause of the contract.
        plan: The run.
    """
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for title, lines in _paragraphs(story):
        for number, line in enumerate(lines):
            table.add_row("" if number else title, escape(line))
    console.print(table)
    console.print()
    console.print(_clause_table(clauses))
    console.print()
    if not story.is_as_expected:
        _print_log(console, plan.log)
    console.print(f"Ledger   {plan.ledger}", soft_wrap=True, markup=False)
    console.print(f"Output   {plan.log}", soft_wrap=True, markup=False)
    console.print(f"Again    sla verdict {plan.folder}", soft_wrap=True, markup=False)
    console.print()
    if story.is_as_expected:
        console.print("[bold green]As expected.[/] The contract did what this fault calls for.")
        return
    console.print("[bold red]Not as expected:[/]")
    for problem in story.problems:
        console.print(f"  {problem}", markup=False)


def summary_of(story: Story, plan: RunPlan) -> dict[str, Any]:
    """Returns the last line of ``--json``.

    Args:
        story: What happened.
        plan: The run.
    """
    found, decision, scenario = story.found, story.decision, story.scenario
    return {
        "kind": "summary",
        "fault": scenario.fault,
        "injected": scenario.inject,
        "injected_rank": scenario.rank,
        "injected_step": scenario.step,
        "found_rule": found.rule if found else None,
        "found_rank": found.rank if found else None,
        "found_step": found.step if found else None,
        "found_phase": found.phase if found else None,
        "found_after_s": story.found_after_s,
        "decided_after_s": story.decided_after_s,
        "stack": list(story.stack),
        "action": decision.action if decision else None,
        "recovered_at_step": story.recovered.step if story.recovered else None,
        "recovered_after_s": story.recovered_after_s,
        "acted_at_step": {str(rank): step for rank, step in sorted(story.acted_at.items())},
        "exit_status": story.ending.exit_status,
        "num_processes_left": story.ending.num_left,
        "is_as_expected": story.is_as_expected,
        "problems": list(story.problems),
        "ledger": str(plan.ledger),
        "output": str(plan.log),
    }


def _paragraphs(story: Story) -> list[tuple[str, list[str]]]:
    injected = [story.scenario.injected]
    if story.scenario.inject is not None:
        injected.append(f"SLA_INJECT={story.scenario.inject}")
    paragraphs = [
        ("Injected", injected),
        ("Found", _found(story)),
        ("Done", _done(story)),
        *([("Recovered", _recovered(story))] if story.recovered else []),
        ("Ended", _ended(story)),
    ]
    if story.others:
        paragraphs.insert(2, ("Also", _also(story)))
    if story.stack:
        where = f"Python stack of rank {story.found.rank}" if story.found else "Python stack"
        frames = [f"  {_shortened(frame)}" for frame in story.stack[:MAX_FRAMES]]
        paragraphs.insert(2, ("Stack", [f"{where}, innermost call first:", *frames]))
    return paragraphs


def _shortened(frame: str) -> str:
    """A frame without the folder that all packages share."""
    return frame.rpartition("site-packages/")[2]


def _found(story: Story) -> list[str]:
    found, scenario = story.found, story.scenario
    if found is None:
        return ["Nothing."]
    where = [
        f"rank {found.rank}" if found.rank is not None else "no single rank",
        *([f"step {found.step}"] if found.step is not None else []),
        *([f"phase {found.phase}"] if found.phase is not None else []),
    ]
    lines = [f"{found.rule}: {', '.join(where)}.", found.message or ""]
    if found.statistic is not None and found.limit is not None:
        lines.append(f"Measured {found.statistic:.4g} {found.unit}, limit {found.limit:.4g}.")
    if story.found_after_s is not None:
        took = f"{story.found_after_s:.2f} s"
        if scenario.step is not None and found.step is not None and found.step > scenario.step:
            took += f" and {found.step - scenario.step + 1} steps"
        lines.append(f"It took {took} from the start of the step that was hit.")
    return lines


def _also(story: Story) -> list[str]:
    return [
        f"{other.rule} (only observed): {other.message}"
        if other.mode == "observe"
        else f"{other.rule}: {other.message}"
        for other in story.others
    ]


def _done(story: Story) -> list[str]:
    decision = story.decision
    if decision is None:
        return ["Written down; training went on." if story.found else "Nothing."]
    after = "" if story.decided_after_s is None else f" after {story.decided_after_s:.2f} s"
    if decision.evidence.get("how") == "end_processes":
        what = f"{decision.action}, by ending every process, since a rank can't follow any more."
        return [f"Decided{after}: {what}"]
    where = f"on all ranks at the end of step {decision.step}"
    lines = [f"Decided{after}: {decision.action} {where}."]
    by_step: dict[int, list[str]] = {}
    for rank, step in sorted(story.acted_at.items()):
        by_step.setdefault(step, []).append(str(rank))
    lines += [
        f"Done at the end of step {step} by rank {', '.join(ranks)}."
        for step, ranks in by_step.items()
    ]
    return lines


def _recovered(story: Story) -> list[str]:
    recovered, seconds = story.recovered, story.recovered_after_s
    if recovered is None or seconds is None:
        return []
    return [
        f"{seconds:.1f} s from the fault to the end of step {recovered.step}, the first new one.",
        recovered.message or "",
    ]


def _ended(story: Story) -> list[str]:
    status, left = story.ending.exit_status, story.ending.num_left
    if status is None:
        how = "The demo ended the job."
    elif status < 0:
        how = f"The job was ended by signal {-status}."
    else:
        how = f"The job ended with exit status {status}."
    remainder = f"{left} processes were left." if left else "No process is left."
    return [f"{how} {remainder}"]


def _clause_table(clauses: Sequence[Clause]) -> Table:
    table = Table(title="The contract, clause by clause", title_justify="left", box=None)
    for title in ("clause", "mode", "verdict", "why"):
        table.add_column(title, header_style="dim", overflow="fold")
    for clause in clauses:
        verdict = Text(clause.outcome.value, style=_STYLES.get(clause.outcome, "dim"))
        table.add_row(clause.rule, clause.mode or "", verdict, escape(clause.message))
    return table


def _print_log(console: Console, log: Path) -> None:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-NUM_LOG_LINES:]
    console.print(f"Last lines of the job's output ({log}):", markup=False, soft_wrap=True)
    for line in lines:
        console.print(f"  {line}", markup=False, style="dim", soft_wrap=True)
    console.print()
