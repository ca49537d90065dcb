"""Tables and lines on standard output."""

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slav1.cli._errors import one_line

Cell = str | Text

_ANY_WIDTH = 1 << 16


def print_table(header: Iterable[str], rows: Iterable[Iterable[Cell]]) -> None:
    """Prints a table without lines.

    Text is shown as it is: nothing in it is taken for markup. On a terminal the last
    column wraps; elsewhere each row is one line, for tools that read lines.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    *fixed, last = header
    for name in fixed:
        table.add_column(name, no_wrap=True)
    table.add_column(last, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(one_line(cell)) for cell in row))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _ANY_WIDTH)
    # Captured, so that a reader who is gone is told of by print and not by rich.
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def print_note(text: str) -> None:
    """Prints one line for people on standard error."""
    print(one_line(text), file=sys.stderr)
