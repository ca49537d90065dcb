"""The ledger: what happened in a run, one JSON object a line.

Entry, writer and reader stand in one file, since they have to agree on every byte of it.
"""

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeAlias

from slav1.breach import Fact

Kind: TypeAlias = Literal[
    "start",
    "notice",
    "incident_begin",
    "incident_end",
    "breach",
    "decision",
    "action",
    "checkpoint_committed",
    "checkpoint_rejected",
    "restored",
    "first_exception",
    "verdict",
    "end",
]
"""What a line tells. A reader keeps kinds of later versions as they are."""

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How numbers that JSON has no form for are written: as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the ledger."""

    time_ns: int
    """Wall clock, in nanoseconds since 1970."""

    attempt: int
    """Start of the run this belongs to, from 0; one more at each restart."""

    rank: int | None = None
    """Global rank it is about, if it is about one."""

    step: int | None = None
    """Optimizer step it is about, if it is about one."""

    phase: str | None = None
    """Name of the phase in small letters, if it is about one."""

    kind: Kind
    """What the line tells."""

    rule: str | None = None
    """Name of the rule in the contract."""

    statistic: float | None = None
    """What was measured, in ``unit``; may be NaN or infinite."""

    limit: float | None = None
    """What it must not cross, in ``unit``."""

    unit: str | None = None
    """Unit of ``statistic`` and ``limit``."""

    mode: str | None = None
    """Mode of the rule: ``observe`` or ``enforce``."""

    action: str | None = None
    """Name of the action in small letters; in mode ``observe`` what it would have been."""

    message: str | None = None
    """One sentence for people."""

    evidence: Mapping[str, Fact] = field(default_factory=dict)
    """Whatever else helps to judge what happened."""

    def to_json(self) -> str:
        """Writes the entry as one line of strict JSON, without the newline.

        Every field is present, null where it has no value. Numbers that are not
        finite become the text ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``, since
        strict JSON has no numbers for them: :func:`read_ledger` turns them back in
        ``statistic`` and ``limit``, and leaves them as text inside ``evidence``.
        A value that is no :data:`~slav1.breach.Fact` is written as its text.
        """
        plain = {part.name: _strict(getattr(self, part.name)) for part in fields(self)}
        return json.dumps(plain, allow_nan=False, default=str)


FIELDS: dict[str, tuple[type, ...]] = {
    "time_ns": (int,),
    "attempt": (int,),
    "rank": (int, NoneType),
    "step": (int, NoneType),
    "phase": (str, NoneType),
    "kind": (str,),
    "rule": (str, NoneType),
    "statistic": (float, int, NoneType),
    "limit": (float, int, NoneType),
    "unit": (str, NoneType),
    "mode": (str, NoneType),
    "action": (str, NoneType),
    "message": (str, NoneType),
    "evidence": (dict,),
}
"""Types that a line may hold for each field of an :class:`Entry`."""


class LedgerWriter:
    """Appends entries to one ledger, and outlasts a disk that is full for a while.

    Each line is handed to the kernel by one call before :meth:`write` returns, so it
    survives the death of this process. When the disk refuses it (full, over quota,
    failing), nothing is raised: the lines wait in memory and are tried again at
    each later :meth:`write` and :meth:`flush`. Used by one thread at a time.
    """

    MAX_WAITING = 4096
    """Lines kept in memory while the disk refuses them. More push out the oldest, and
    a ``notice`` in the ledger later says how many."""

    def __init__(self, path: Path | str, on_trouble: Callable[[str], None]) -> None:
        """Opens the ledger, and makes it if it is not there.

        Args:
            path: The file; its folder must exist.
            on_trouble: Told, in one sentence, when the disk first refuses a line;
                not told again until every waiting line was written.

        Raises:
            OSError: If the file can't be opened for appending.
        """
        self.path = Path(path)
        self._on_trouble = on_trouble
        self._num_lost = 0
        self._attempt = 0
        self._waiting: deque[bytes] = deque()
        self._is_in_trouble = False
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o666)
        try:
            self._is_torn = _ends_torn(fd)
        except OSError:
            os.close(fd)
            raise
        self._fd: int | None = fd

    @property
    def num_waiting(self) -> int:
        """Lines that the disk has not taken yet."""
        return len(self._waiting)

    def write(self, entry: Entry) -> None:
        """Appends one entry, after those that still wait.

        Raises:
            ValueError: If the ledger was closed.
        """
        self._queue(entry)
        self.flush()

    def flush(self) -> None:
        """Tries to write the lines that wait.

        Raises:
            ValueError: If the ledger was closed.
        """
        if self._fd is None:
            raise ValueError(f"The ledger {self.path} was closed; open it again to write to it.")
        try:
            self._drain(self._fd)
        except OSError as error:
            self._tell(error)
        else:
            self._is_in_trouble = False

    def close(self) -> int:
        """Tries once more to write what waits, and closes the file.

        Returns:
            How many lines never reached the disk; 0 if the ledger was already closed.
        """
        if self._fd is None:
            return 0
        self.flush()
        num_missing = len(self._waiting) + self._num_lost
        fd, self._fd = self._fd, None
        self._waiting.clear()
        try:
            os.close(fd)
        except OSError as error:
            self._tell(error)
        return num_missing

    def _queue(self, entry: Entry) -> None:
        if len(self._waiting) >= self.MAX_WAITING:
            self._waiting.popleft()
            self._num_lost += 1
        self._attempt = entry.attempt
        self._waiting.append(_as_line(entry))

    def _drain(self, fd: int) -> None:
        if self._num_lost:
            self._append(fd, _as_line(_loss_notice(self._attempt, self._num_lost)))
            self._num_lost = 0
        while self._waiting:
            self._append(fd, self._waiting[0])
            self._waiting.popleft()

    def _append(self, fd: int, line: bytes) -> None:
        # The newline ends what an earlier, cut write left, so that only that is lost.
        data = b"\n" + line if self._is_torn else line
        num_taken = os.write(fd, data)
        if num_taken > 0:
            self._is_torn = not data[:num_taken].endswith(b"\n")
        # A line that lacks nothing but its newline already reads well: writing it again
        # would double it.
        if num_taken < len(data) - 1:
            raise OSError(f"only {num_taken} of {len(data)} bytes were taken")

    def _tell(self, error: OSError) -> None:
        if self._is_in_trouble:
            return
        self._is_in_trouble = True
        self._on_trouble(
            f"The ledger {self.path} can't be written: {error}. Training goes on; up to "
            f"{self.MAX_WAITING} lines are kept in memory and tried again. Free some "
            "space there, or set another run directory."
        )


def read_ledger(path: Path | str) -> list[Entry]:
    """Reads a ledger, also one that was cut or holds torn lines.

    Args:
        path: The file.

    Returns:
        The entries of all lines that read, in order. Keys of later versions are
        left out. :func:`parse_ledger` also counts what did not read.

    Raises:
        OSError: If the file can't be read.
    """
    entries, _ = parse_ledger(Path(path).read_bytes())
    return entries


def parse_ledger(data: bytes) -> tuple[list[Entry], int]:
    """Reads the content of a ledger.

    Args:
        data: Content of the file.

    Returns:
        The entries of all lines that read, in order; and the number of lines that
        do not read.
    """
    lines = [line for line in data.split(b"\n") if line.strip()]
    found = [_parse(line) for line in lines]
    entries = [entry for entry in found if entry is not None]
    return entries, len(lines) - len(entries)


def _parse(line: bytes) -> Entry | None:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    known = {"evidence": {}} | {name: raw[name] for name in FIELDS if name in raw}
    for name in ("statistic", "limit"):
        value = known.get(name)
        known[name] = NON_FINITE.get(value, value) if isinstance(value, str) else value
    if not all(_is_kind_of(known.get(name), types) for name, types in FIELDS.items()):
        return None
    return Entry(**known)


def _is_kind_of(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    return value


def _as_line(entry: Entry) -> bytes:
    return entry.to_json().encode() + b"\n"


def _loss_notice(attempt: int, num_lost: int) -> Entry:
    return Entry(
        time_ns=time.time_ns(),
        attempt=attempt,
        kind="notice",
        message=f"{num_lost} earlier lines of this ledger were lost: the disk refused them "
        "for longer than memory could keep them.",
        evidence={"num_lost": num_lost},
    )


def _ends_torn(fd: int) -> bool:
    num_bytes = os.fstat(fd).st_size
    return num_bytes > 0 and os.pread(fd, 1, num_bytes - 1) != b"\n"
