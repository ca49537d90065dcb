"""``sla replay``: what the detectors would have found in a recorded series."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from slav1 import replay as series
from slav1.breach import Breach, Fact, Status
from slav1.cli._errors import CommandLineError
from slav1.cli._judged_again import (
    Judge,
    judge_of,
    judged_again,
    metadata_in,
    print_changes,
    verdict_facts,
)
from slav1.cli._output import print_note, print_table
from slav1.cli._run_folder import (
    POLICY_COPY,
    contract_of,
    entries_of,
    events_of,
    find_run,
    samples_in,
)
from slav1.contract import Contract, ContractError, Mode, Rule
from slav1.detectors._detector import Detector
from slav1.guard import Guard
from slav1.ledger import Entry, Kind
from slav1.sample import Sample

BREACHED = 3
"""Exit status if a breach was found."""

_KINDS: dict[Status, Kind] = {
    Status.NOTICE: "notice",
    Status.BREACH: "breach",
    Status.RECOVERED: "incident_end",
}


def replay(
    recorded: Annotated[
        Path, typer.Argument(metavar="FILE.csv|RUN_DIR", help="A series, or a run with rings.")
    ],
    contract: Annotated[
        Path | None,
        typer.Option(help="Judge by this contract. Without it: the run's own, or L1 for a CSV."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object an event, as in the ledger.")
    ] = False,
) -> None:
    """Print what the rules find in a recorded series, and what would be done about it.

    A CSV file has a row a step and the columns step and loss; optionally grad_norm,
    mem_allocated_mib, iteration_time_s. With a contract, the breaches in a run's ledger
    are judged by it as well. Exit status: 0 without a breach, 3 with one, 2 if there is
    nothing to replay.
    """
    if not recorded.exists():
        raise CommandLineError(f"{recorded} is not there; give a CSV file or a run folder.")
    if recorded.is_dir():
        entries, past = _run(find_run(recorded), contract, is_shown=not as_json)
    else:
        entries, past = _series(recorded, contract), []
    if as_json:
        for entry in (*entries, *past):
            print(entry.to_json())
    else:
        _print(recorded, entries)
        if past:
            print_changes(str(recorded), past)
    is_breached = any(entry.kind == "breach" for entry in (*entries, *past))
    raise typer.Exit(BREACHED if is_breached else 0)


def _series(path: Path, given: Path | None) -> list[Entry]:
    in_force = _contract_for_series(given)
    with judge_of(in_force) as judge:
        return [_entry(breach, judge) for breach in _of_series(path, in_force)]


def _run(run: Path, given: Path | None, *, is_shown: bool) -> tuple[list[Entry], list[Entry]]:
    """What the rings show, and the ledger's breaches judged by a contract that was given."""
    in_force = contract_of(run, given)
    with judge_of(in_force, None if given else run / POLICY_COPY) as judge:
        ledger = entries_of(run)
        past = ledger if given else []
        if any(entry.kind == "breach" for entry in past) and not _are_rings_readable(run):
            if is_shown:
                print_note(f"{run} holds no flight rings that read: only its ledger is judged.")
            return [], list(judged_again(past, judge, run))
        num_past = sum(entry.kind == "breach" for entry in ledger)
        if num_past and not given and is_shown:
            breaches = "1 breach" if num_past == 1 else f"{num_past} breaches"
            print_note(f"{run}: its ledger holds {breaches}; --contract judges them as well.")
        starts = [entry for entry in ledger if entry.kind == "start"]
        judge.begin(metadata_in(starts[-1], run) if starts else {"run_id": run.resolve().name})
        found = [_entry(breach, judge) for breach in _of_run(run, in_force, judge)]
        return found, list(judged_again(past, judge, run))


def _are_rings_readable(run: Path) -> bool:
    try:
        return bool(samples_in(run))
    except CommandLineError:
        # Whoever looks for what was measured then says which, and why.
        return False


def _contract_for_series(given: Path | None) -> Contract:
    try:
        return Contract.load(given) if given else Contract.level("L1")
    except ContractError as error:
        raise CommandLineError(str(error)) from error


def _watched(contract: Contract) -> dict[str, Rule]:
    return {name: rule for name, rule in contract.rules.items() if rule.mode is not Mode.OFF}


def _of_run(run: Path, contract: Contract, judge: Judge) -> Iterator[Breach]:
    guard = Guard({name: rule.detector for name, rule in _watched(contract).items()})
    for event in events_of(run):
        if isinstance(event, Sample):
            judge.see(event)
        yield from guard.observe(event)


def _of_series(path: Path, contract: Contract) -> Iterator[Breach]:
    detectors = [rule.detector for rule in _watched(contract).values()]
    try:
        rows = series.read_series(path)
    except OSError as error:
        raise CommandLineError(f"{path} can't be read: {error.strerror or error}.") from error
    except (ValueError, csv.Error) as error:
        text = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise CommandLineError(text) from error
    _note_what_limits(path, rows, detectors)
    yield from series.replay(rows, detectors)


def _note_what_limits(
    path: Path, rows: Sequence[Mapping[str, series.Value]], detectors: Sequence[Detector]
) -> None:
    """Says on stderr what a reader of the findings should know about the series."""
    num_back = series.num_steps_back(rows)
    if num_back:
        print_note(
            f"{path}: in {num_back} of {len(rows)} rows step is no higher than in the row before, "
            "as after a resume; the rows are taken in the order of the file."
        )
    needed = {d.RULE: d.NUM_SAMPLES_NEEDED for d in detectors if series.takes_rows(d)}
    short = sorted(rule for rule, num in needed.items() if num > len(rows))
    if short:
        print_note(
            f"{path}: {len(rows)} rows are fewer than {', '.join(short)} need "
            f"({', '.join(str(needed[rule]) for rule in short)}) before silence means anything."
        )


def _entry(breach: Breach, judge: Judge) -> Entry:
    """One finding as a ledger line; a series has no wall clock, so its time is 0."""
    rule, verdict = judge.contract.rules[breach.rule], judge.verdict(breach)
    evidence: dict[str, Fact] = {**breach.evidence, "is_actionable": breach.is_actionable}
    if breach.arl0 is not None:
        evidence["arl0"] = breach.arl0
    if breach.action is not None:
        evidence["asks_for"] = breach.action
    return Entry(
        time_ns=0,
        attempt=0,
        rank=breach.rank,
        step=breach.step,
        phase=None if breach.phase is None else breach.phase.name.lower(),
        kind=_KINDS[breach.status],
        rule=breach.rule,
        statistic=breach.statistic,
        limit=breach.limit,
        unit=breach.unit,
        mode=rule.mode.value,
        action=(verdict.would_have or verdict.action).name.lower(),
        message=breach.message,
        evidence={**evidence, **verdict_facts(verdict)},
    )


def _print(recorded: Path, entries: list[Entry]) -> None:
    if entries:
        header = ["step", "rank", "event", "rule", "action", "what"]
        print_table(header, (_row(entry) for entry in entries))
    num_breaches = sum(entry.kind == "breach" for entry in entries)
    breaches = "1 breach" if num_breaches == 1 else f"{num_breaches} breaches"
    events = "1 event" if len(entries) == 1 else f"{len(entries)} events"
    print_note(f"{recorded}: {breaches} in {events}.")


def _row(entry: Entry) -> list[str]:
    places = ["-" if place is None else str(place) for place in (entry.step, entry.rank)]
    action = entry.action or "-"
    would = f"would {action}" if entry.mode == Mode.OBSERVE.value and action != "log" else action
    return [*places, entry.kind, entry.rule or "-", would, entry.message or ""]
