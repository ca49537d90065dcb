"""Tables and lines on standard output."""

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slav1.cli._errors import one_line

Cell = str | Text

_ANY_WIDTH = 1 << 16
_MIN_LAST_COLUMNS = 24


def print_table(header: Iterable[str], rows: Iterable[Iterable[Cell]]) -> None:
    """Prints a table without lines.

    Text is shown as it is: nothing in it is taken for markup. On a terminal the last
    column wraps; elsewhere, and on one that has no room for that, each row is one line.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    *fixed, last = header
    for name in fixed:
        table.add_column(name, no_wrap=True)
    table.add_column(last, overflow="fold")
    num_fixed_columns = 0
    for row in rows:
        cells = [cell if isinstance(cell, Text) else Text(one_line(cell)) for cell in row]
        table.add_row(*cells)
        num_fixed_columns = max(num_fixed_columns, sum(cell.cell_len + 2 for cell in cells[:-1]))
    console = Console(highlight=False)
    if not sys.stdout.isatty() or console.width < num_fixed_columns + _MIN_LAST_COLUMNS:
        console.width = _ANY_WIDTH
        # Else it is filled up with blanks that belong to its style.
        table.columns[-1].header_style = "not bold"
    # Captured, so that a reader who is gone is told of by print and not by rich.
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def print_note(text: str) -> None:
    """Prints one line for people on standard error."""
    print(one_line(text), file=sys.stderr)
