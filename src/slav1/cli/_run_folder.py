"""The folder of a run: which one is meant, its contract, its ledger, its flight rings."""

import re
from collections.abc import Iterator
from pathlib import Path

from slav1.cli._errors import CommandLineError
from slav1.cli._output import print_note
from slav1.contract import Contract, ContractError
from slav1.ledger import Entry, parse_ledger
from slav1.recorder.block import BlockVersionError
from slav1.recorder.ring import read_ring_file
from slav1.sample import Round, Sample

LEDGER = "ledger.jsonl"
POLICY_COPY = "policy.rego"
_RING = re.compile(r"ring-(\d+)\.bin")


def find_run(path: Path) -> Path:
    """Returns the run that ``path`` means: itself, or the newest run in it.

    The newest is the one whose ledger was written last.

    Raises:
        CommandLineError: If there is no run.
    """
    if not path.is_dir():
        raise CommandLineError(f"{path} is no folder; give a run folder, or the one that holds it.")
    if (path / LEDGER).is_file():
        return path
    ledgers = [ledger for ledger in path.glob(f"*/{LEDGER}") if ledger.is_file()]
    if not ledgers:
        raise CommandLineError(
            f"neither {path} nor a folder in it holds a {LEDGER}; give a run folder, or the one "
            "that holds it."
        )
    newest = max(ledgers, key=lambda ledger: (ledger.stat().st_mtime_ns, ledger.parent.name))
    return newest.parent


def entries_of(run: Path) -> list[Entry]:
    """Reads the ledger of a run; says on stderr how many lines of it did not read.

    Raises:
        CommandLineError: If the file can't be read.
    """
    ledger = run / LEDGER
    try:
        entries, num_unreadable = parse_ledger(ledger.read_bytes())
    except OSError as error:
        raise CommandLineError(f"{ledger} can't be read: {error.strerror or error}.") from error
    if num_unreadable:
        print_note(f"{ledger}: {num_unreadable} line(s) do not read and are left out.")
    return entries


def contract_of(run: Path, given: Path | None) -> Contract:
    """Returns the contract to judge a run by: ``given``, or the one it ran under.

    Raises:
        CommandLineError: If it can't be read.
    """
    path = given or run / "contract.yaml"
    try:
        return Contract.load(path)
    except ContractError as error:
        hint = "" if given else " It says what the run promised; name another with --contract."
        raise CommandLineError(f"{error}{hint}") from error


def events_of(run: Path) -> Iterator[Sample | Round]:
    """Yields what the flight rings of a run hold, as detectors are shown it.

    Step by step: the sample of each rank that has one, and the round once every rank
    has. A step that a rank did twice counts as it was the last time.

    Raises:
        CommandLineError: If there is no ring, or one can't be read.
    """
    rings = rings_of(run)
    for step in sorted(set().union(*rings.values())):
        samples = [rings[rank][step] for rank in sorted(rings) if step in rings[rank]]
        yield from samples
        if len(samples) == len(rings):
            yield Round(step=step, samples=tuple(samples))


def rings_of(run: Path) -> dict[int, dict[int, Sample]]:
    """The samples of every rank by step, as it was the last time.

    Raises:
        CommandLineError: If there is no ring, or one can't be read.
    """
    found = samples_in(run)
    if not found:
        raise CommandLineError(
            f"{run} holds no flight ring (ring-<rank>.bin): rings are kept when something "
            "happened. Give a CSV file to replay a series of your own."
        )
    return {rank: {each.step: each for each in samples} for rank, samples in found.items()}


def samples_in(folder: Path) -> dict[int, list[Sample]]:
    """What the flight rings in a folder hold by rank, oldest first; nothing if none is there.

    Raises:
        CommandLineError: If one can't be read.
    """
    found: dict[int, list[Sample]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _RING.fullmatch(path.name)
        if match is None:
            continue
        try:
            found[int(match[1])] = read_ring_file(path)
        except (BlockVersionError, OSError) as error:
            raise CommandLineError(f"{path} can't be replayed: {error}") from error
    return found
