"""How ``sla demo`` shows itself while it runs: live, as plain lines, or as JSON."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slav1.cli._demo_rings import RankNow
from slav1.ledger import Entry
from slav1.phase import Phase

LINE_EVERY_S = 1.0
"""Pause between two plain lines, in seconds."""

DRAW_EVERY_S = 0.25
"""Pause between two live pictures, in seconds: drawing takes time from the ranks."""

NUM_COLUMNS = 100
"""Width of the output where there is no terminal to ask."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_STYLES = {"breach": "bold red", "decision": "bold yellow", "action": "bold green"}
# The breach line itself comes with it; verdicts are shown as a table at the end.
_HIDDEN = ("incident_begin", "verdict")
_LEAVING = (Phase.TEARDOWN, Phase.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The run at one moment."""

    elapsed_s: float
    """Time since the demo began, in seconds."""

    num_steps: int
    """Steps the run is to make."""

    num_ranks: int
    """Processes that are to train."""

    ranks: tuple[RankNow, ...]
    """Ranks that have joined so far."""

    losses: Sequence[float]
    """Mean loss over all ranks of each step made."""

    is_ending: bool = False
    """Whether rank 0 has ended already."""

    @property
    def step(self) -> int | None:
        """Step that the slowest rank is in; None before all have joined."""
        steps = [rank.step for rank in self.ranks]
        return min(steps) if len(steps) == self.num_ranks else None

    @property
    def stage(self) -> str:
        """What is going on, in a few words."""
        if self.is_ending or (self.ranks and all(r.phase in _LEAVING for r in self.ranks)):
            return "training has ended, the processes are leaving"
        if self.step is None:
            num_joined = len(self.ranks)
            return (
                f"starting: {num_joined} of {self.num_ranks} ranks are up "
                "(each imports PyTorch and Lightning first)"
            )
        return "training"


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
        self._live.update(_drawn(picture), refresh=True)

    def close(self) -> None:
        self._live.stop()


class PlainView:
    """One line a second and one an event; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_line_s = 0.0

    def show_event(self, entry: Entry, elapsed_s: float) -> None:
        if is_shown(entry):
            self._print(event_line(entry, elapsed_s))

    def show_progress(self, picture: Picture) -> None:
        if picture.elapsed_s < self._next_line_s:
            return
        self._next_line_s = picture.elapsed_s + LINE_EVERY_S
        self._print(Text(f"{picture.elapsed_s:6.1f} s  {progress_line(picture)}"))

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

    def show_summary(self, summary: dict[str, Any]) -> None:
        """Prints the last line."""
        print(json.dumps(summary), flush=True)


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


def progress_line(picture: Picture) -> str:
    """Writes one line about where the run is."""
    if picture.stage != "training":
        return picture.stage
    loss = f"loss {picture.losses[-1]:.2f}" if picture.losses else "no loss yet"
    phases = ", ".join(f"rank {rank.rank} {rank.phase.name.lower()}" for rank in picture.ranks)
    return (
        f"step {picture.step} of {picture.num_steps}, {loss}, "
        f"{_milliseconds(_slowest_s(picture))} a step; {phases}"
    )


def sparkline(values: Sequence[float], width: int) -> str:
    """Draws values as a row of blocks, the newest at the right.

    Args:
        values: Any numbers; those that are not finite become a space.
        width: Most characters to use; values that share one are averaged.
    """
    if not values:
        return ""
    per_column = -(-len(values) // width)
    columns = [
        sum(values[at : at + per_column]) / len(values[at : at + per_column])
        for at in range(0, len(values), per_column)
    ]
    finite = [value for value in columns if value - value == 0]
    if not finite:
        return " " * len(columns)
    low, high = min(finite), max(finite)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(
        _BLOCKS[round((value - low) * scale)] if value - value == 0 else " " for value in columns
    )


def _drawn(picture: Picture) -> RenderableType:
    parts: list[RenderableType] = ["", _head(picture)]
    if picture.losses:
        first, last = picture.losses[0], picture.losses[-1]
        curve = sparkline(picture.losses, 56)
        parts.append(f"   loss  {first:.2f} {curve} {last:.2f}")
    if picture.ranks:
        parts.append(_ranks_table(picture.ranks))
    return Group(*parts)


def _head(picture: Picture) -> RenderableType:
    elapsed = f"{picture.elapsed_s:6.1f} s"
    if picture.stage != "training":
        return f"{elapsed}  {picture.stage}"
    head = Table.grid(padding=(0, 2))
    step = picture.step or 0
    head.add_row(
        elapsed,
        f"step {step:>4} of {picture.num_steps}",
        ProgressBar(total=picture.num_steps, completed=step, width=40),
    )
    return head


def _ranks_table(ranks: Sequence[RankNow]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for title in ("rank", "step", "phase", "loss", "step time"):
        table.add_column(title, min_width=9)
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            str(rank.step),
            rank.phase.name.lower(),
            "" if rank.loss is None else f"{rank.loss:.2f}",
            _milliseconds(rank.step_time_s),
        )
    return table


def _slowest_s(picture: Picture) -> float | None:
    times = [rank.step_time_s for rank in picture.ranks if rank.step_time_s is not None]
    return max(times, default=None)


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.0f} ms"
