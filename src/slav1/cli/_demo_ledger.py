"""Reading a ledger while it is being written."""

from pathlib import Path

from slav1.ledger import Entry, parse_ledger


class LedgerTail:
    """Hands out each line of a ledger once, as soon as it is whole."""

    def __init__(self, path: Path) -> None:
        """Starts at the first line; the file need not be there yet."""
        self.path = path
        self.entries: list[Entry] = []
        """Everything handed out so far."""
        self._num_bytes = 0

    def new_entries(self) -> list[Entry]:
        """Returns the entries written since the last call; OSError if the file can't be read."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._num_bytes)
            data = file.read()
        # A line without its end is still being written: it is read again next time.
        whole = data[: data.rfind(b"\n") + 1]
        self._num_bytes += len(whole)
        entries, _ = parse_ledger(whole)
        self.entries += entries
        return entries
