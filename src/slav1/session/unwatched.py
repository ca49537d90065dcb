"""The ledger where nobody watches: it says so, and nothing else."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from slav1.breach import Fact
from slav1.contract import Contract
from slav1.coordinator.closing import write_counts
from slav1.coordinator.journal import Journal
from slav1.coordinator.run_ledger import RunLedger
from slav1.coordinator.say import say
from slav1.ledger import Entry, Kind, LedgerWriter

_NOT_WATCHED: Mapping[str, Fact] = {"is_watched": False}


class NoMonitor:
    """Stands for the monitor where the contract says ``monitor.kind: off``."""

    address = ""
    """There is no coordinator."""

    def __init__(self, folder: Path, attempt: int, contract: Contract, origin: str) -> None:
        """Writes that the run is not watched, and where the contract comes from.

        Raises:
            RunTakenError: If another job that still runs writes into the folder.
        """
        self._contract = contract
        self._ledger = RunLedger(folder / "ledger.jsonl", say)
        self._journal = Journal(self._ledger, attempt)
        self._journal.note(
            "start",
            (
                "Recording only: monitor.kind is off, so nothing is judged and nobody is warned. "
                f"{origin}"
            ).strip(),
            evidence={"is_watched": False},
        )

    def wait(self, limit_s: float) -> bool:
        """Writes the last lines: no rule saw anything."""
        del limit_s
        write_counts(self._journal, self._contract, {})
        self._journal.note("end", "The run ended. It was not watched: monitor.kind is off.")
        self._journal.close()
        self._ledger.let_go()
        return True


def write_alone(
    folder: Path,
    attempt: int,
    rank: int,
    step: int | None,
    message: str,
    *,
    kind: Kind = "notice",
    rule: str | None = None,
    evidence: Mapping[str, Fact] = _NOT_WATCHED,
) -> None:
    """Writes one line where no monitor keeps the ledger.

    Args:
        folder: Folder of the run.
        attempt: Start of the run, from 0.
        rank: Global rank that says it.
        step: Step it is about.
        message: One sentence for people.
        kind: What the line tells.
        rule: Rule it is about.
        evidence: Whatever else helps to judge it.
    """
    entry = Entry(
        time_ns=time.time_ns(),
        attempt=attempt,
        rank=rank,
        step=step,
        kind=kind,
        rule=rule,
        message=message,
        evidence=evidence,
    )
    with contextlib.suppress(OSError):
        ledger = LedgerWriter(folder / "ledger.jsonl", on_trouble=say)
        ledger.write(entry)
        ledger.close()
