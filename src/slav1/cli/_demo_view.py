"""How ``sla demo`` shows itself while it runs: live, as plain lines, or as JSON."""

import sys
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from slav1.cli._demo_picture import Picture, drawn, progress_line
from slav1.ledger import Entry

LINE_EVERY_S = 1.0
"""Pause between two plain lines, in seconds."""

REPEAT_EVERY_S = 10.0
"""Pause before a plain line that says the same again, in seconds."""

DRAW_EVERY_S = 0.25
"""Pause between two live pictures, in seconds: drawing takes time from the ranks."""

NUM_COLUMNS = 100
"""Width of the output where there is no terminal to ask."""

_STYLES = {"breach": "bold red", "decision": "bold yellow", "action": "bold green"}
# The breach line itself comes with it; verdicts are shown as a table at the end.
_HIDDEN = ("incident_begin", "verdict")


class View(Protocol):
    """One way to show a run."""

    def show_event(self, entry: Entry, elapsed_s: float) -> None:
        """Shows a ledger line that was written ``elapsed_s`` seconds after the start."""
        ...

    def show_progress(self, picture: Picture) -> None:
        """Shows where the run is; called several times a second."""
        ...

    def close(self) -> None:
        """Stops showing progress, so that the end can be printed."""
        ...


class LiveView:
    """Progress that is redrawn in place, with events above it; for a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._next_picture_s = 0.0

    def show_event(self, entry: Entry, elapsed_s: float) -> None:
        if is_shown(entry):
            self._console.print(event_line(entry, elapsed_s))

    def show_progress(self, picture: Picture) -> None:
        if picture.elapsed_s < self._next_picture_s:
            return
        self._next_picture_s = picture.elapsed_s + DRAW_EVERY_S
        self._live.update(drawn(picture), refresh=True)

    def close(self) -> None:
        self._live.stop()


class PlainView:
    """A line a second while anything changes, and one an event; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_line_s = 0.0
        self._repeat_at_s = 0.0
        self._last = ""

    def show_event(self, entry: Entry, elapsed_s: float) -> None:
        if is_shown(entry):
            self._print(event_line(entry, elapsed_s))

    def show_progress(self, picture: Picture) -> None:
        line = progress_line(picture)
        if picture.elapsed_s < (self._repeat_at_s if line == self._last else self._next_line_s):
            return
        self._last = line
        self._next_line_s = picture.elapsed_s + LINE_EVERY_S
        self._repeat_at_s = picture.elapsed_s + REPEAT_EVERY_S
        self._print(Text(f"{picture.elapsed_s:6.1f} s  {line}"))

    def close(self) -> None:
        pass

    def _print(self, text: Text) -> None:
        # A log has no width to wrap to.
        self._console.print(text, soft_wrap=True)
        self._console.file.flush()


class JsonView:
    """Ledger lines as they come, one JSON object a line, and nothing else."""

    def show_event(self, entry: Entry, elapsed_s: float) -> None:
        del elapsed_s
        print(entry.to_json(), flush=True)

    def show_progress(self, picture: Picture) -> None:
        del picture

    def close(self) -> None:
        pass


def console_for_demo() -> Console:
    """Returns a console for standard output, of fixed width if that is no terminal."""
    return Console(width=None if sys.stdout.isatty() else NUM_COLUMNS, highlight=False)


def is_shown(entry: Entry) -> bool:
    """Whether a ledger line is worth a line on the screen."""
    # An incident that ended with the run, and not by itself, names no step.
    is_over_with_run = entry.kind == "incident_end" and entry.step is None
    return entry.kind not in _HIDDEN and not is_over_with_run


def event_line(entry: Entry, elapsed_s: float) -> Text:
    """Writes a ledger line for people."""
    rule = f"{entry.rule}: " if entry.rule else ""
    style = _STYLES.get(entry.kind, "")
    return Text.assemble(
        f"{elapsed_s:6.1f} s  ", (f"{entry.kind:<12} ", style), f"{rule}{entry.message or ''}"
    )
