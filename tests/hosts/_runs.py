"""What a run left behind: its ledger, and what its ranks said."""

import json
from pathlib import Path
from typing import Any

from slav1.ledger import Entry, read_ledger


def run_folders(run_dir: Path) -> list[Path]:
    """Folders of all runs, oldest first."""
    ledgers = run_dir.glob("*/ledger.jsonl")
    return [path.parent for path in sorted(ledgers, key=lambda path: path.stat().st_mtime_ns)]


def entries(run_dir: Path, *kinds: str, rule: str | None = None) -> list[Entry]:
    """Lines of the only run's ledger, of these kinds and this rule if any are given."""
    (folder,) = run_folders(run_dir)
    return [
        entry
        for entry in read_ledger(folder / "ledger.jsonl")
        if (not kinds or entry.kind in kinds) and (rule is None or entry.rule == rule)
    ]


def messages(run_dir: Path, *kinds: str) -> list[str]:
    """What those lines say."""
    return [entry.message or "" for entry in entries(run_dir, *kinds)]


def told(out: str, name: str) -> dict[str, Any]:
    """The last line ``toys.tell(name, ...)`` wrote."""
    lines = [json.loads(line) for line in out.splitlines() if line.startswith('{"tell"')]
    return [line for line in lines if line["tell"] == name][-1]
